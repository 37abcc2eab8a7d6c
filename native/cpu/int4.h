/* Packed int4: two elements a byte in memory order, the even one in the high nibble, value = code - 8.
 *
 * A tile is unpacked into one code a byte first; from there on it is an operand like any other.
 */
#pragma once

#include "host/base.h"

namespace gemmill {

struct Int4 {
    static constexpr uint8_t kZeroCode = 8; /* the code that pads tiles: 0 */
};

/* Unpack `bytes` whole bytes into 2 * bytes codes. Vectorises: the two stores of a step are adjacent. */
inline void unpack_int4(uint8_t* __restrict codes, const uint8_t* __restrict packed, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) {
        codes[2 * i] = static_cast<uint8_t>(packed[i] >> 4);
        codes[2 * i + 1] = static_cast<uint8_t>(packed[i] & 15);
    }
}

/* Unpack elements [first, first + count) of a packed array; return where in `codes` the first one landed.
 * Rows of an odd leading dimension start mid-byte, so that may be one past the start: `codes` holds count + 2. */
inline const uint8_t* unpack_int4_span(uint8_t* codes, const uint8_t* packed, int64_t first, int64_t count) {
    const int64_t skip = first & 1;
    unpack_int4(codes, packed + first / 2, (skip + count + 1) / 2);
    return codes + skip;
}

}  // namespace gemmill
