/* Codes to float32 with AVX-512 F and BW, by way of half precision (half.h). */
#pragma once

#include "cpu/intrinsics.h"

#include "cpu/half.h"

namespace gemmill {

using Element = float;
constexpr int kDecodeStep = 32;
constexpr bool kDecodesInRegisters = true;

typedef int16_t Lanes __attribute__((vector_size(64)));

template <typename Format>
struct Decoder {
    /* kDecodeStep codes in registers. */
    static GEMMILL_INLINE void load(__m512 (&out)[2], const uint8_t* codes) {
        using Half = HalfFromCode<Format>;
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        const __m512i half = reinterpret_cast<__m512i>(Half::run(reinterpret_cast<Lanes>(_mm512_cvtepu8_epi16(bytes))));
        out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
        out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
        if (Half::kScale != 1.0f) {
            for (__m512& v : out) v = _mm512_mul_ps(v, _mm512_set1_ps(Half::kScale));
        }
    }

    static void run(float* __restrict out, const uint8_t* __restrict codes, int count) {
        for (int i = 0; i < count; i += kDecodeStep) {
            __m512 v[2];
            load(v, codes + i);
            _mm512_storeu_ps(out + i, v[0]);
            _mm512_storeu_ps(out + i + 16, v[1]);
        }
    }

    static GEMMILL_INLINE float sum_lanes(__m512 v) { return _mm512_reduce_add_ps(v); }
};

}  // namespace gemmill
