/* Codes to float32 with AVX2 and F16C, by way of half precision (half.h). */
#pragma once

#include "cpu/intrinsics.h"

#include "cpu/half.h"

namespace gemmill {

using Element = float;
constexpr int kDecodeStep = 16;
constexpr bool kDecodesInRegisters = true;

typedef int16_t Lanes __attribute__((vector_size(32)));

template <typename Format>
struct Decoder {
    /* kDecodeStep codes in registers. */
    static GEMMILL_INLINE void load(__m256 (&out)[2], const uint8_t* codes) {
        using Half = HalfFromCode<Format>;
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        const __m256i half = reinterpret_cast<__m256i>(Half::run(reinterpret_cast<Lanes>(_mm256_cvtepu8_epi16(bytes))));
        out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
        out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
        if (Half::kScale != 1.0f) {
            for (__m256& v : out) v = _mm256_mul_ps(v, _mm256_set1_ps(Half::kScale));
        }
    }

    static void run(float* __restrict out, const uint8_t* __restrict codes, int count) {
        for (int i = 0; i < count; i += kDecodeStep) {
            __m256 v[2];
            load(v, codes + i);
            _mm256_storeu_ps(out + i, v[0]);
            _mm256_storeu_ps(out + i + 8, v[1]);
        }
    }

    static GEMMILL_INLINE float sum_lanes(__m256 v) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
};

}  // namespace gemmill
