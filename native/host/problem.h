/* A checked call: pointers, sizes, leading dimensions in elements. */
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

}  // namespace gemmill
