/* One call's operands, and where the lines of a stored one lie. */
#pragma once

#include "host/base.h"

namespace gemmill {

struct Problem {
    const uint8_t* a;
    const uint8_t* b;
    const void* aq;
    char* c;
    int64_t m, n, k;
    int64_t lda, ldb, ldaq, ldc;
};

inline Problem make_problem(const void* a, const void* aq, const void* b, void* c, int64_t m, int64_t n, int64_t k,
                            int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc) {
    return Problem{static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), aq, static_cast<char*>(c), m, n, k,
                   lda, ldb, ldaq, ldc};
}

/* A stored operand: so many lines, each of so many elements. */
struct Shape {
    int64_t lines, length;
};

}  // namespace gemmill
