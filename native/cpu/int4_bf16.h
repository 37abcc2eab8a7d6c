/* int4 codes to bfloat16: the table that decode_bf16.h permutes. */
#pragma once

#include "cpu/decode_bf16.h"
#include "cpu/int4.h"

namespace gemmill {

template <>
struct Bf16Code<Int4> {
    static constexpr bool kSigned = false;
    static constexpr bool kNegativeZeroIsNan = false;
    static constexpr uint32_t float_bits(uint32_t code) {
        /* -8 to 7: value = 1.m * 2^e, found by counting; codes beyond 15 never come. */
        const int value = static_cast<int>(code & 15u) - 8;
        if (value == 0) return 0;
        const uint32_t magnitude = static_cast<uint32_t>(value < 0 ? -value : value);
        uint32_t e = 0;
        while (magnitude >> (e + 1)) ++e;
        return (value < 0 ? 0x80000000u : 0u) | (e + 127) << 23 | (magnitude << (23 - e) & 0x7fffffu);
    }
};

}  // namespace gemmill
