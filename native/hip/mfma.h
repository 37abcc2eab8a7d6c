/* Matrix instructions, one warp tile at a time: 16 by 16 by kWarpTileK.
 *
 * Lane l holds k = 16-byte chunk l / 16 of every 64 bytes of row l % 16, of P and of Q alike. The instructions
 * number k in their own ways; since P and Q agree, the sum over a group is the same for any numbering, and one
 * way to load serves all. Of D, lane l holds rows 4 * (l / 16) .. + 3 of column l % 16. */
#pragma once

#include "hip/device.h"

namespace gemmill::hip {

// gfx90a has no FP8 matrix instruction: its operands are bf16.
constexpr int operand_bytes(Arch arch) { return arch == Arch::gfx90a ? 2 : 1; }

constexpr bool has_warp_tile_k(Arch arch, int warp_tile_k) {
    return arch == Arch::gfx950 ? warp_tile_k == 128 : warp_tile_k == 32 || warp_tile_k == 64;
}

// What a lane holds of one row and one group of 128 k.
template <Arch kArch>
struct Fragment {
    static constexpr int kChunks = kGroupK * operand_bytes(kArch) / 4 / kChunk;
    u32x4 chunk[kChunks];

    u32x2 half(int i) const { return u32x2{chunk[i / 2][i % 2 * 2], chunk[i / 2][i % 2 * 2 + 1]}; }
};

// D += P * Q^T over step `step` of kWarpTileK.
template <Arch kArch, Kind kKind, int kWarpTileK>
f32x4 warp_tile_mfma(const Fragment<kArch>& p, const Fragment<kArch>& q, int step, f32x4 d) {
    static_assert(has_warp_tile_k(kArch, kWarpTileK), "the arch has no such matrix instruction");
    if constexpr (kWarpTileK == 128) {
        return mfma_16x16x128<kKind>(bit_cast<u32x8>(p), bit_cast<u32x8>(q), d);
    } else {
        constexpr int kHalves = kWarpTileK * operand_bytes(kArch) / 4 / 8;  // 8 bytes a lane and instruction
        GEMMILL_UNROLL
        for (int i = step * kHalves; i < (step + 1) * kHalves; ++i) {
            if constexpr (kArch == Arch::gfx942)
                d = mfma_16x16x32<kKind>(p.half(i), q.half(i), d);
            else
                d = mfma_16x16x16_bf16(p.half(i), q.half(i), d);
        }
        return d;
    }
}

// The product of one group.
template <Arch kArch, Kind kKind, int kWarpTileK>
f32x4 group_mfma(const Fragment<kArch>& p, const Fragment<kArch>& q) {
    f32x4 d = {0, 0, 0, 0};
    GEMMILL_UNROLL
    for (int step = 0; step < kGroupK / kWarpTileK; ++step)
        d = warp_tile_mfma<kArch, kKind, kWarpTileK>(p, q, step, d);
    return d;
}

}  // namespace gemmill::hip
