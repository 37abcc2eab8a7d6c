/* fp8 codes to half precision, as many as a vector has 16-bit lanes.
 *
 * An OCP fp8 code is a half-precision number with fewer mantissa bits: E5M2 is its upper byte, and E4M3 shifted into
 * place is 2^-8 of the value. The conversion from half to float32 then treats subnormals exactly, whatever DAZ says, and
 * without the penalty that subnormal operands have in float32 arithmetic.
 */
#pragma once

#include "cpu/fp8.h"

namespace gemmill {

/* Half-precision numbers, each the code's value times 1 / kScale; Lanes is a vector of int16_t, a code in each. */
template <typename Format>
struct HalfFromCode;

template <>
struct HalfFromCode<E5M2> {
    static constexpr float kScale = 1.0f;
    template <typename Lanes>
    static GEMMILL_INLINE Lanes run(Lanes codes) {
        return codes << 8;
    }
};

template <>
struct HalfFromCode<E4M3fn> {
    static constexpr float kScale = 256.0f;
    template <typename Lanes>
    static GEMMILL_INLINE Lanes run(Lanes codes) {
        const Lanes high = codes << 8;
        const Lanes is_nan = (high & 0x7f00) == 0x7f00;
        /* The arithmetic shift copies the sign beside itself; the copy is the exponent's top bit: clear it. */
        return (high >> 1 & -0x4001) | (is_nan & 0x7e00);
    }
};

}  // namespace gemmill
