/* Matrix instructions, one warp tile at a time: 16 by 16 by WARP_TILE_K.
 *
 * Lane l holds k = 16-byte chunk l / 16 of every 64 bytes of row l % 16, of P and of Q alike. The instructions
 * number k in their own ways; since P and Q agree, the sum over a group is the same for any numbering, and one
 * way to load serves all. Of D, lane l holds rows 4 * (l / 16) .. + 3 of column l % 16. */
#ifndef GEMMILL_HIP_MFMA_H
#define GEMMILL_HIP_MFMA_H

#include "device.h"

// gfx90a has no FP8 matrix instruction: its operands are bf16.
constexpr int operand_bytes(Arch arch) { return arch == Arch::gfx90a ? 2 : 1; }

constexpr bool has_warp_tile_k(Arch arch, int warp_tile_k) {
    return arch == Arch::gfx950 ? warp_tile_k == 128 : warp_tile_k == 32 || warp_tile_k == 64;
}

// What a lane holds of one row and one group of 128 k.
template <Arch ARCH>
struct Fragment {
    static constexpr int CHUNKS = GROUP_K * operand_bytes(ARCH) / 4 / CHUNK;
    u32x4 chunk[CHUNKS];

    u32x2 half(int i) const { return u32x2{chunk[i / 2][i % 2 * 2], chunk[i / 2][i % 2 * 2 + 1]}; }
};

// D += P * Q^T over step `step` of WARP_TILE_K.
template <Arch ARCH, Kind KIND, int WARP_TILE_K>
f32x4 warp_tile_mfma(const Fragment<ARCH>& p, const Fragment<ARCH>& q, int step, f32x4 d) {
    static_assert(has_warp_tile_k(ARCH, WARP_TILE_K), "the arch has no such matrix instruction");
    if constexpr (WARP_TILE_K == 128) {
        return mfma_16x16x128<KIND>(bit_cast<u32x8>(p), bit_cast<u32x8>(q), d);
    } else {
        constexpr int HALVES = WARP_TILE_K * operand_bytes(ARCH) / 4 / 8;  // 8 bytes a lane and instruction
        GEMMILL_UNROLL
        for (int i = step * HALVES; i < (step + 1) * HALVES; ++i) {
            if constexpr (ARCH == Arch::gfx942)
                d = mfma_16x16x32<KIND>(p.half(i), q.half(i), d);
            else
                d = mfma_16x16x16_bf16(p.half(i), q.half(i), d);
        }
        return d;
    }
}

// The product of one group.
template <Arch ARCH, Kind KIND, int WARP_TILE_K>
f32x4 group_mfma(const Fragment<ARCH>& p, const Fragment<ARCH>& q) {
    f32x4 d = {0, 0, 0, 0};
    GEMMILL_UNROLL
    for (int step = 0; step < GROUP_K / WARP_TILE_K; ++step)
        d = warp_tile_mfma<ARCH, KIND, WARP_TILE_K>(p, q, step, d);
    return d;
}

#endif /* GEMMILL_HIP_MFMA_H */
