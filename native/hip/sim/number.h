/* The number formats of the simulated matrix units, from their definitions: sign, exponent, fraction, bias.
 *
 * Written apart from ../convert.h on purpose, so that a mistake there has nothing to agree with. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace gemmill::hip::sim {

enum class Encoding { ocp, fnuz };

/* OCP 8-bit floating point, and the "FNUZ" formats of CDNA3: finite but for one NaN, unsigned zero, and a bias
 * one larger. e4m3 of OCP has NaN (S.1111.111) and no infinity; e5m2 of OCP is like IEEE. */
inline float decode_fp8(std::uint8_t byte, int fraction_bits, Encoding encoding) {
    const int exponent_bits = 7 - fraction_bits;
    const int bias = (1 << (exponent_bits - 1)) - (encoding == Encoding::ocp ? 1 : 0);
    const int exponent = (byte & 0x7f) >> fraction_bits;
    const int fraction = byte & ((1 << fraction_bits) - 1);
    const int top = (1 << exponent_bits) - 1;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    float magnitude;
    if (encoding == Encoding::fnuz) {
        if (byte == 0x80) return nan;
    } else if (fraction_bits == 3) {
        if (exponent == top && fraction == 7) return nan;
    } else if (exponent == top) {
        magnitude = fraction ? nan : std::numeric_limits<float>::infinity();
        return byte & 0x80 ? -magnitude : magnitude;
    }
    if (exponent == 0) magnitude = std::ldexp((float)fraction, 1 - bias - fraction_bits);
    else magnitude = std::ldexp((float)(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
    return byte & 0x80 ? -magnitude : magnitude;
}

// CDNA2's matrix units take bf16 subnormals for zero.
inline float decode_bf16(std::uint16_t half) {
    if ((half & 0x7f80) == 0) half &= 0x8000;
    const std::uint32_t bits = (std::uint32_t)half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

}  // namespace gemmill::hip::sim
