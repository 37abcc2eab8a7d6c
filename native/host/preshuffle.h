/* AQ from row-major (M, QK) to (T, M, b): b groups a tile, T tiles; groups beyond QK are zeros. */
#pragma once

#include "host/base.h"

namespace gemmill {

inline void preshuffle(char* out, const char* in, int64_t m, int64_t groups, int64_t b, size_t element_bytes) {
    for (int64_t t = 0; t * b < groups; ++t) {
        const size_t have = static_cast<size_t>(min_of(b, groups - t * b)) * element_bytes;
        const size_t whole = static_cast<size_t>(b) * element_bytes;
        for (int64_t row = 0; row < m; ++row) {
            memcpy(out, in + static_cast<size_t>(row * groups + t * b) * element_bytes, have);
            memset(out + have, 0, whole - have); /* all bits zero is +0 in every type of AQ */
            out += whole;
        }
    }
}

}  // namespace gemmill
