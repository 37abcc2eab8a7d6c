/* Parts of a problem: of its result, and of an operand. */
#pragma once

#include "host/problem.h"

namespace gemmill {

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
