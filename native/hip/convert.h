/* Conversion of packed elements to what the matrix instructions take: fp8 bytes, or bf16 on gfx90a.
 *
 * Every conversion is exact. A word holds four fp8 bytes or eight int4 nibbles, in memory order. */
#pragma once

#include "hip/device.h"

namespace gemmill::hip {

/* An fp8 format: `mantissa` bits, exponent `bias`. FNUZ has no infinity and no -0: 0x80 is its only NaN. */
struct Fp8Format {
    int mantissa;
    int bias;
    bool fnuz;
};

constexpr bool is_fnuz(Arch arch) { return arch != Arch::gfx950; }

constexpr Fp8Format fp8_format(Kind kind, Arch arch) {
    const bool fnuz = is_fnuz(arch);
    return kind == Kind::fp8 ? Fp8Format{3, fnuz ? 8 : 7, fnuz} : Fp8Format{2, fnuz ? 16 : 15, fnuz};
}

/* ---- int4 -------------------------------------------------------------------------------------------- */

constexpr u32 kInt4Zero = 0x88888888;  // eight times the code of 0: value = code - 8

// The fp8 byte of an int4 value; -8..7 need three significant bits, so both formats hold all of them.
constexpr u8 encode_int4(int value, Fp8Format format) {
    if (value == 0) return 0;
    const int magnitude = value < 0 ? -value : value;
    const int exponent = magnitude >= 8 ? 3 : magnitude >= 4 ? 2 : magnitude >= 2 ? 1 : 0;
    const int mantissa = (magnitude << format.mantissa >> exponent) - (1 << format.mantissa);
    return (u8)((value < 0 ? 0x80 : 0) | (exponent + format.bias) << format.mantissa | mantissa);
}

// Four table entries from code `first` on, as a word.
constexpr u32 int4_table(int first, Fp8Format format) {
    u32 word = 0;
    for (int i = 0; i < 4; ++i) word |= (u32)encode_int4(first + i - 8, format) << 8 * i;
    return word;
}

// Eight nibbles to two words of one code a byte; the even element is the high nibble.
inline u32x2 int4_codes(u32 packed) {
    const u32 even = packed >> 4 & 0x0f0f0f0f;
    const u32 odd = packed & 0x0f0f0f0f;
    return u32x2{permute_bytes(odd, even, 0x05010400), permute_bytes(odd, even, 0x07030602)};
}

// Four codes to four fp8 bytes: two eight-entry look-ups, then a choice by bit 3.
template <Kind kKind, Arch kArch>
u32 int4_to_fp8(u32 codes) {
    constexpr Fp8Format kFormat = fp8_format(kKind, kArch);
    const u32 index = codes & 0x07070707;
    const u32 negative = permute_bytes(int4_table(4, kFormat), int4_table(0, kFormat), index);
    const u32 positive = permute_bytes(int4_table(12, kFormat), int4_table(8, kFormat), index);
    const u32 mask = permute_bytes(0, 0, (codes >> 3 & 0x01010101) | 0x0c0c0c0c);
    return (positive & mask) | (negative & ~mask);
}

/* ---- bf16 (gfx90a) ----------------------------------------------------------------------------------- */

// The high halves of two floats.
inline u32 pack_bf16(float low, float high) {
    return permute_bytes(bit_cast<u32>(high), bit_cast<u32>(low), 0x07060302);
}

inline u32x2 int4_to_bf16(u32 codes) {
    float value[4];
    for (int i = 0; i < 4; ++i) value[i] = (float)(codes >> 8 * i & 0xff) - 8.0f;
    return u32x2{pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3])};
}

constexpr float power_of_two(int exponent) {
    float x = 1;
    for (int i = 0; i < exponent; ++i) x *= 2;
    return x;
}

// Exponent and mantissa go to their bf16 places; a product by a power of two corrects the bias, subnormals
// included (f32 subnormals are on; bf16 takes part only once the value is normal, since MFMA flushes there).
template <Kind kKind, Arch kArch>
u32 fp8_pair_to_bf16(u32 pair) {  // bytes in bits 8..15 and 24..31
    constexpr Fp8Format kFormat = fp8_format(kKind, kArch);
    constexpr float kRebias = power_of_two(127 - kFormat.bias);
    const u32 raw = (pair & 0x80008000) | (pair & 0x7f007f00) >> (kFormat.mantissa + 1);
    return pack_bf16(bit_cast<float>(raw << 16) * kRebias, bit_cast<float>(raw & 0xffff0000) * kRebias);
}

template <Kind kKind, Arch kArch>
u32x2 fp8_to_bf16(u32 bytes) {
    static_assert(is_fnuz(kArch), "NaN is taken for 0x80 here");
    const u32 nan = bytes & ~((bytes & 0x7f7f7f7f) + 0x7f7f7f7f) & 0x80808080;
    u32x2 result;
    for (int i = 0; i < 2; ++i) {
        const u32 selector = i ? 0x030c020c : 0x010c000c;
        const u32 nan_pair = permute_bytes(0, nan, selector);
        result[i] = fp8_pair_to_bf16<kKind, kArch>(permute_bytes(0, bytes, selector)) |
                    (nan_pair - (nan_pair >> 9));  // 0x8000 to 0x7fc0
    }
    return result;
}

/* ---- Scales and results ------------------------------------------------------------------------------ */

// One fp8 scale to float.
template <Kind kKind, Arch kArch>
float fp8_to_float(u32 byte) {
    constexpr Fp8Format kFormat = fp8_format(kKind, kArch);
    constexpr float kRebias = power_of_two(127 - kFormat.bias);
    const u32 magnitude = byte & 0x7f;
    const u32 sign = (byte & 0x80) << 24;
    u32 bits = bit_cast<u32>(bit_cast<float>(magnitude << (23 - kFormat.mantissa)) * kRebias) | sign;
    if constexpr (kFormat.fnuz) {
        if (byte == 0x80) bits = 0x7fc00000;
    } else if constexpr (kKind == Kind::fp8) {
        if (magnitude == 0x7f) bits = 0x7fc00000;  // e4m3fn has NaN but no infinity
    } else {
        if (magnitude >= 0x7c) bits = sign | 0x7f800000 | (magnitude & 3) << 21;
    }
    return bit_cast<float>(bits);
}

inline u16 to_bf16(float x) {
    const u32 bits = bit_cast<u32>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

}  // namespace gemmill::hip
