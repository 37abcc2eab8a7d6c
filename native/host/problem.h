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

/* A stored operand: so many lines, each of so many elements. */
struct Shape {
    int64_t lines, length;
};

}  // namespace gemmill
