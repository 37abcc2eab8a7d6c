/* Turn 8 rows of 16 codes into panel order: 16 / Pair steps, each holding Pair consecutive codes of all 8 rows. */
#pragma once

#include "host/base.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gemmill {

#if defined(__SSE2__)

/* The halves of a register, 8 bytes each, go to two places. */
GEMMILL_INLINE void store_halves(uint8_t* low, uint8_t* high, __m128i v) {
    _mm_storel_pd(reinterpret_cast<double*>(low), _mm_castsi128_pd(v));
    _mm_storeh_pd(reinterpret_cast<double*>(high), _mm_castsi128_pd(v));
}

GEMMILL_INLINE void store_whole(uint8_t* to, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), v); }

template <int Pair>
GEMMILL_INLINE void transpose_8x16(uint8_t* out, int64_t out_step, const uint8_t* in, int64_t in_row) {
    __m128i r[8], s[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * in_row));
    /* Interleave row i with row i + 4, three times: a butterfly whose end order is the transpose. */
    if (Pair == 1) {
        for (int i = 0; i < 4; ++i) {
            s[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 4]);
            s[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 4]);
        }
        /* s[2i] = k 0..7 and s[2i+1] = k 8..15 of rows i, i + 4 */
        __m128i t[8];
        for (int half = 0; half < 2; ++half) {
            const __m128i a = s[half], b = s[2 + half], c = s[4 + half], d = s[6 + half];
            const __m128i ac0 = _mm_unpacklo_epi8(a, c), ac1 = _mm_unpackhi_epi8(a, c);
            const __m128i bd0 = _mm_unpacklo_epi8(b, d), bd1 = _mm_unpackhi_epi8(b, d);
            t[4 * half + 0] = _mm_unpacklo_epi8(ac0, bd0);
            t[4 * half + 1] = _mm_unpackhi_epi8(ac0, bd0);
            t[4 * half + 2] = _mm_unpacklo_epi8(ac1, bd1);
            t[4 * half + 3] = _mm_unpackhi_epi8(ac1, bd1);
        }
        for (int i = 0; i < 8; ++i) store_halves(out + 2 * i * out_step, out + (2 * i + 1) * out_step, t[i]);
    } else {
        for (int i = 0; i < 4; ++i) {
            s[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
            s[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
        }
        for (int half = 0; half < 2; ++half) {
            const __m128i a = s[half], b = s[2 + half], c = s[4 + half], d = s[6 + half];
            const __m128i ac0 = _mm_unpacklo_epi16(a, c), ac1 = _mm_unpackhi_epi16(a, c);
            const __m128i bd0 = _mm_unpacklo_epi16(b, d), bd1 = _mm_unpackhi_epi16(b, d);
            uint8_t* to = out + 4 * half * out_step;
            store_whole(to, _mm_unpacklo_epi16(ac0, bd0));
            store_whole(to + out_step, _mm_unpackhi_epi16(ac0, bd0));
            store_whole(to + 2 * out_step, _mm_unpacklo_epi16(ac1, bd1));
            store_whole(to + 3 * out_step, _mm_unpackhi_epi16(ac1, bd1));
        }
    }
}

#else

template <int Pair>
GEMMILL_INLINE void transpose_8x16(uint8_t* out, int64_t out_step, const uint8_t* in, int64_t in_row) {
    for (int row = 0; row < 8; ++row) {
        for (int k = 0; k < 16; ++k) out[k / Pair * out_step + row * Pair + k % Pair] = in[row * in_row + k];
    }
}

#endif

/* out = even[0] odd[0] even[1] odd[1] ... */
template <int Count>
GEMMILL_INLINE void interleave(uint8_t* out, const uint8_t* even, const uint8_t* odd) {
    int i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= Count; i += 16) {
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + i));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + i));
        store_whole(out + 2 * i, _mm_unpacklo_epi8(a, b));
        store_whole(out + 2 * i + 16, _mm_unpackhi_epi8(a, b));
    }
    for (; i + 8 <= Count; i += 8) {
        const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(even + i));
        const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(odd + i));
        store_whole(out + 2 * i, _mm_unpacklo_epi8(a, b));
    }
#endif
    for (; i < Count; ++i) {
        out[2 * i] = even[i];
        out[2 * i + 1] = odd[i];
    }
}

}  // namespace gemmill
