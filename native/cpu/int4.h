/* Packed int4: two elements a byte in memory order, the even one in the high nibble, value = code - 8.
 *
 * A tile is unpacked into one code a byte first; from there on it is an operand like any other.
 */
#pragma once

#include "host/base.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gemmill {

struct Int4 {
    static constexpr uint8_t kZeroCode = 8; /* the code that pads tiles: 0 */
};

constexpr int kUnpackSlack = 64 + 1; /* codes that unpacking a line may write beyond its length */

/* Unpack elements [first, first + count) of a packed array. A line of an odd leading dimension starts mid-byte: its
 * elements are the low nibble of one byte and the high nibble of the next. */
inline void unpack_int4_span(uint8_t* __restrict codes, const uint8_t* packed, int64_t first, int64_t count) {
    const uint8_t* __restrict in = packed + first / 2;
    int64_t i = 0;
    if (first % 2) {
        codes[0] = static_cast<uint8_t>(in[0] & 15);
        ++codes;
        ++in;
        --count;
    }
#if defined(__SSE2__)
    /* By hand, since lines are often too short for what compilers make of the loop below. */
    const __m128i low = _mm_set1_epi8(15);
    for (; i + 8 <= count / 2; i += 8) {
        const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
        const __m128i even = _mm_and_si128(_mm_srli_epi16(v, 4), low), odd = _mm_and_si128(v, low);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 2 * i), _mm_unpacklo_epi8(even, odd));
    }
#endif
    for (; i < count / 2; ++i) {
        codes[2 * i] = static_cast<uint8_t>(in[i] >> 4);
        codes[2 * i + 1] = static_cast<uint8_t>(in[i] & 15);
    }
    if (count % 2) codes[count - 1] = static_cast<uint8_t>(in[i] >> 4);
}

}  // namespace gemmill
