/* One call's operands, and a part of its result. */
#pragma once

#include "host/shape.h"

namespace gemmill {

struct Problem {
    const uint8_t* a;
    const uint8_t* b;
    const void* aq;
    char* c;
    int64_t m, n, k;
    int64_t lda, ldb, ldaq, ldc;
};

/* Rows [m0, m1) and columns [n0, n1) of C. */
struct Rectangle {
    int64_t m0, m1, n0, n1;
};

/* Element (row, k) of a matrix stored in order O. */
template <Order O>
constexpr int64_t element_index(int64_t row, int64_t k, int64_t stride) {
    return O == Order::kContiguousK ? row * stride + k : k * stride + row;
}

}  // namespace gemmill
