/* The four 8-bit float encodings, decoded exactly.
 *
 *   encoding     exponent  mantissa  bias  specials
 *   E4M3fn       4         3         7     no infinity; NaN is S.1111.111
 *   E5M2         5         2         15    infinity and NaN as in IEEE 754
 *   E4M3fnuz     4         3         8     no infinity, no -0; NaN is 0x80
 *   E5M2fnuz     5         2         16    no infinity, no -0; NaN is 0x80
 *
 * Every code is exact in bfloat16, hence in float32.
 */
#pragma once

#include "host/base.h"

namespace gemmill {

enum class Nan { kAllOnes, kIeee, kNegativeZero };

template <int MantissaBits, int Bias, Nan Rule>
struct Fp8 {
    static constexpr int kMantissaBits = MantissaBits;
    static constexpr int kBias = Bias;
    static constexpr Nan kNan = Rule;
    static constexpr uint8_t kZeroCode = 0; /* the code that pads tiles: +0 */
};

using E4M3fn = Fp8<3, 7, Nan::kAllOnes>;
using E5M2 = Fp8<2, 15, Nan::kIeee>;
using E4M3fnuz = Fp8<3, 8, Nan::kNegativeZero>;
using E5M2fnuz = Fp8<2, 16, Nan::kNegativeZero>;

/* The float32 bit pattern of one code. */
template <typename F>
constexpr uint32_t fp8_float_bits(uint32_t code) {
    const uint32_t sign = (code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t exponent = magnitude >> F::kMantissaBits;
    uint32_t mantissa = magnitude & ((1u << F::kMantissaBits) - 1);
    const uint32_t top = 0x7fu >> F::kMantissaBits;
    if (F::kNan == Nan::kNegativeZero && code == 0x80u) return 0x7fc00000u;
    if (F::kNan == Nan::kAllOnes && magnitude == 0x7fu) return sign | 0x7fc00000u;
    if (F::kNan == Nan::kIeee && exponent == top) return sign | (mantissa ? 0x7fc00000u : 0x7f800000u);
    if (magnitude == 0) return sign;
    int e = static_cast<int>(exponent) - F::kBias;
    if (exponent == 0) { /* subnormal: shift the leading one out of the mantissa */
        e += 1;
        while (!(mantissa >> F::kMantissaBits)) {
            mantissa <<= 1;
            e -= 1;
        }
        mantissa &= (1u << F::kMantissaBits) - 1;
    }
    return sign | static_cast<uint32_t>(e + 127) << 23 | mantissa << (23 - F::kMantissaBits);
}

/* float32 bits of all 256 codes. */
struct Fp8Table {
    uint32_t bits[256];
};

template <typename F>
constexpr Fp8Table make_fp8_table() {
    Fp8Table table{};
    for (uint32_t code = 0; code < 256; ++code) table.bits[code] = fp8_float_bits<F>(code);
    return table;
}

template <typename F>
inline constexpr Fp8Table kFp8Table = make_fp8_table<F>();

template <typename F>
GEMMILL_INLINE float fp8_to_float(uint8_t code) {
    return bits_as<float>(kFp8Table<F>.bits[code]);
}

}  // namespace gemmill
