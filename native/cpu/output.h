/* float32 sums to the type of C: round to nearest even, overflow to infinity, NaN kept. */
#pragma once

#include "host/base.h"

#if defined(__F16C__)
#include "cpu/intrinsics.h"
#endif

namespace gemmill {

struct OutFloat32 {
    using Type = float;
    static void store(float* out, const float* in, int64_t count) {
        memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
    }
};

struct OutBfloat16 {
    using Type = uint16_t;
    static void store(uint16_t* __restrict out, const float* __restrict in, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t bits = bits_as<uint32_t>(in[i]);
            const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            const uint32_t quiet = bits >> 16 | 0x40u;
            out[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
        }
    }
};

/* Branch-free, so that compilers vectorise it. */
GEMMILL_INLINE uint16_t half_from_float(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Normal: rebias the exponent by 15 - 127 and round away 13 bits; a carry walks into the exponent, and on to
     * infinity. */
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    /* Subnormal: adding 0.5 aligns the mantissa so that one unit is 2^-24, and rounds it. */
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 113u << 23 ? subnormal : normal;
    half = magnitude > 0x477fefffu ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : half;
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

struct OutFloat16 {
    using Type = uint16_t;
    static void store(uint16_t* __restrict out, const float* __restrict in, int64_t count) {
        int64_t i = 0;
#if defined(__F16C__)
        for (; i + 8 <= count; i += 8) {
            const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
        }
#endif
        for (; i < count; ++i) out[i] = half_from_float(in[i]);
    }
};

}  // namespace gemmill
