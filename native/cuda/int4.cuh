// Packed int4 to e4m3: two elements a byte, the even one in the high nibble, value = code - 8.
//
// -8 .. 7 are exact in e4m3 (and in e5m2, which has the two mantissa bits that 5 and 7 need), and wgmma takes an
// e4m3 A with an e5m2 B, so both variants unpack to e4m3.
#pragma once
#include "ptx.cuh"

namespace gemmill {

// Unlike __byte_perm, whose selector loses its top bits.
__device__ __forceinline__ uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
    return d;
}

// Eight codes to eight e4m3 bytes in nibble order: nibble 0 of w is byte 0 of low.
// prmt looks four nibbles up at once. Its selector's top bit replicates the picked byte's sign, zero for
// magnitudes, so each of the two tables gives zero for the other one's codes.
__device__ __forceinline__ void int4_to_e4m3(uint32_t w, uint32_t& low, uint32_t& high) {
    constexpr uint32_t negative_0 = 0x4A4C4E50, negative_1 = 0x38404448; // 8 7 6 5, 4 3 2 1
    constexpr uint32_t positive_0 = 0x44403800, positive_1 = 0x4E4C4A48; // 0 1 2 3, 4 5 6 7
    const uint32_t flipped = w ^ 0x88888888u, shifted = w << 4;
    const uint32_t signs_low = permute(shifted, w, 0x5140), signs_high = permute(shifted, w, 0x7362);
    low = (permute(negative_0, negative_1, w) | permute(positive_0, positive_1, flipped)) | (~signs_low & 0x80808080u);
    high = (permute(negative_0, negative_1, w >> 16) | permute(positive_0, positive_1, flipped >> 16)) |
           (~signs_high & 0x80808080u);
}

} // namespace gemmill
