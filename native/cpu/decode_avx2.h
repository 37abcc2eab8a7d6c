/* Codes to float32 with AVX2 and F16C.
 *
 * An OCP fp8 code is a half-precision number with fewer mantissa bits: E5M2 is its upper byte, and E4M3
 * shifted into place is 2^-8 of the value. The half-to-float conversion then treats subnormals exactly,
 * whatever DAZ says, and without the penalty that subnormal operands have in float32 arithmetic.
 */
#pragma once

#include "cpu/intrinsics.h"

#include "cpu/fp8.h"

namespace gemmill {

using Element = float;
constexpr int kDecodeStep = 16;
constexpr bool kDecodesInRegisters = true;

/* Sixteen half-precision numbers, each the code's value times 1 / scale(). */
template <typename Format>
struct HalfFromCode;

template <>
struct HalfFromCode<E5M2> {
    static constexpr float kScale = 1.0f;
    static GEMMILL_INLINE __m256i run(__m256i codes) { return _mm256_slli_epi16(codes, 8); }
};

template <>
struct HalfFromCode<E4M3fn> {
    static constexpr float kScale = 256.0f;
    static GEMMILL_INLINE __m256i run(__m256i codes) {
        const __m256i high = _mm256_slli_epi16(codes, 8);
        const __m256i magnitude = _mm256_set1_epi16(0x7f00);
        const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(high, magnitude), magnitude);
        /* The arithmetic shift copies the sign beside itself; the copy is the exponent's top bit: clear it. */
        const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(-0x4001));
        return _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    }
};

template <typename Format>
struct Decoder {
    /* kDecodeStep codes in registers. */
    static GEMMILL_INLINE void load(__m256 (&out)[2], const uint8_t* codes) {
        using Half = HalfFromCode<Format>;
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        const __m256i half = Half::run(_mm256_cvtepu8_epi16(bytes));
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
