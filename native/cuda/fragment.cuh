// X through registers: from a stage in shared memory to the four registers a thread gives to one wgmma.
//
// Thread (p, q) = (lane / 4, lane % 4) of warp w holds two rows of its warp's sixteen, and of each the bytes
// k = 4q..4q+3 and 16+4q..16+4q+3. Which row of the tile a fragment row means is free, as long as the scale and the
// output agree: fragment_row() says it, and MN-major formats choose rows that lie side by side in memory.
#pragma once
#include "int4.cuh"
#include "ptx.cuh"

namespace gemmill {

// Row inside the 64-row slab of half i (0, 1) of a fragment.
template <bool mn, bool i4>
__device__ __forceinline__ int fragment_row(int warp, int lane, int i) {
    const int p = lane / 4;
    if (mn && i4) return 32 * (warp / 2) + 4 * p + 2 * (warp & 1) + i;
    if (mn) return 16 * warp + 2 * p + i;
    return 16 * warp + p + 8 * i;
}

// Sixteen k of 16 bytes of MN-major lines, transposed: low holds k = 4q, 4q+1 of two bytes, high k = 4q+2, 4q+3;
// for q >= 2 they are exchanged. Which k a matrix row takes is chosen so that eight rows never share a bank.
__device__ __forceinline__ int transposed_k(int lane) {
    const int matrix = lane / 8, r = lane % 8;
    return 16 * (matrix / 2) + 4 * (r / 2) + (r & 1) + 2 * ((matrix & 1) ^ (r / 4));
}

// x: the stage; slab: first row; step: which 32 of the 128 k.
template <class T>
__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], uint32_t x, int slab, int warp, int lane, int step) {
    const int q = lane % 4;
    if constexpr (!T::x_mn && !T::x_i4) {
        const int row = slab + 16 * warp + lane % 16;
        ldmatrix(a, x + swizzled<128>(row * 128 + step * 32 + (lane / 16) * 16));
    } else if constexpr (T::x_mn && !T::x_i4) {
        const int row = slab + 16 * warp;
        uint32_t d[4];
        constexpr int line = T::x_line_bytes;
        ldmatrix_transposed(d, x + (row / line) * (line * kGroup) +
                                   swizzled<T::x_swizzle>((step * 32 + transposed_k(lane)) * line + row % line));
        const uint32_t even = q < 2 ? 0x6420 : 0x2064, odd = q < 2 ? 0x7531 : 0x3175;
        a[0] = permute(d[0], d[1], even);
        a[1] = permute(d[0], d[1], odd);
        a[2] = permute(d[2], d[3], even);
        a[3] = permute(d[2], d[3], odd);
    } else if constexpr (!T::x_mn && T::x_i4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = slab + fragment_row<false, true>(warp, lane, i);
            const uint32_t line = row * 64 + step * 16 + q * 2;
            const uint32_t w = load_shared_2(x + swizzled<64>(line)) | uint32_t(load_shared_2(x + swizzled<64>(line + 8))) << 16;
            uint32_t low, high;
            int4_to_e4m3(w, low, high); // odd k first in each byte
            a[i] = permute(low, low, 0x2301);
            a[i + 2] = permute(high, high, 0x2301);
        }
    } else {
        const int byte = (slab + 32 * (warp / 2)) / 2;
        uint32_t d[4];
        ldmatrix_transposed(d, x + swizzled<T::x_swizzle>((step * 32 + transposed_k(lane)) * T::x_line_bytes + byte));
        const uint32_t pick = warp & 1 ? (q < 2 ? 0x7531 : 0x3175) : (q < 2 ? 0x6420 : 0x2064);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t w = permute(d[2 * i], d[2 * i + 1], pick); // a byte a k, its high nibble the even row
            uint32_t low, high;
            int4_to_e4m3(w, low, high);
            a[2 * i] = permute(low, high, 0x7531);
            a[2 * i + 1] = permute(low, high, 0x6420);
        }
    }
}

} // namespace gemmill
