// What two producer warps do to a stage. They convert a Y that the copy engine brought as it is stored (transposed, or
// unpacked from int4), and they fill stages by themselves from operands that the copy engine can't take: those whose
// base or leading dimension is not a multiple of 16 bytes.
#pragma once
#include "int4.cuh"
#include "ptx.cuh"

namespace gemmill {

constexpr int kFillThreads = 64;

// One operand in global memory: [rows, k], out of range reads as zero.
template <Elem elem, bool mn>
struct Source {
    const uint8_t* base;
    int64_t ld;
    int rows, k;

    __device__ __forceinline__ int64_t index(int row, int kk) const { return mn ? kk * ld + row : row * ld + kk; }
    __device__ __forceinline__ bool inside(int row, int kk) const { return row < rows && kk < k; }
    __device__ __forceinline__ uint32_t byte(int row, int kk) const {
        return inside(row, kk) ? load_global(base + index(row, kk)) : 0;
    }
    __device__ __forceinline__ uint32_t code(int row, int kk) const {
        if (!inside(row, kk)) return 0;
        const int64_t i = index(row, kk);
        return (load_global(base + i / 2) >> (i & 1 ? 0 : 4)) & 15;
    }
};

template <class F>
__device__ __forceinline__ uint32_t gather_4(F byte) {
    return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// X as the copy engine would have written it.
template <class T>
__device__ __forceinline__ void fill_x(uint32_t x, const Source<T::x_elem, T::x_mn>& s, int row0, int k0, int thread) {
    constexpr int per_byte = T::x_i4 ? 2 : 1;
#pragma unroll 1
    for (int at = thread * 4; at < T::x_bytes; at += kFillThreads * 4) {
        uint32_t w;
        if constexpr (T::x_mn) {
            const int box = at / (T::x_line_bytes * kGroup);
            const int kk = k0 + at / T::x_line_bytes % kGroup;
            const int row = row0 + (box * T::x_line_bytes + at % T::x_line_bytes) * per_byte;
            w = gather_4([&](int i) {
                return T::x_i4 ? s.code(row + 2 * i, kk) << 4 | s.code(row + 2 * i + 1, kk) : s.byte(row + i, kk);
            });
        } else {
            const int row = row0 + at / T::x_row_bytes;
            const int kk = k0 + at % T::x_row_bytes * per_byte;
            w = gather_4([&](int i) {
                return T::x_i4 ? s.code(row, kk + 2 * i) << 4 | s.code(row, kk + 2 * i + 1) : s.byte(row, kk + i);
            });
        }
        store_shared(x + swizzled<T::x_swizzle>(at), w);
    }
}

// Y, always to K-major 8-bit: an element a load.
template <class T>
__device__ __forceinline__ void fill_y_scalar(uint32_t y, const Source<T::y_elem, T::y_mn>& s, int row0, int k0, int thread) {
    constexpr int words = kGroup / 4;
#pragma unroll 1
    for (int i = thread; i < T::tile_y * words; i += kFillThreads) {
        // Neighbouring threads take what lies side by side in memory.
        const int row = T::y_mn ? i % T::tile_y : i / words, kk = (T::y_mn ? i / T::tile_y : i % words) * 4;
        uint32_t w;
        if constexpr (T::y_i4) {
            uint32_t unused;
            w = s.code(row0 + row, k0 + kk) | s.code(row0 + row, k0 + kk + 1) << 4 |
                s.code(row0 + row, k0 + kk + 2) << 8 | s.code(row0 + row, k0 + kk + 3) << 12;
            int4_to_e4m3(w, w, unused);
        } else {
            w = gather_4([&](int j) { return s.byte(row0 + row, k0 + kk + j); });
        }
        store_shared(y + swizzled<128>(row * 128 + kk), w);
    }
}

__device__ __forceinline__ void transpose_4x4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    const uint32_t ab0 = permute(a, b, 0x5140), ab1 = permute(a, b, 0x7362);
    const uint32_t cd0 = permute(c, d, 0x5140), cd1 = permute(c, d, 0x7362);
    a = permute(ab0, cd0, 0x5410);
    b = permute(ab0, cd0, 0x7632);
    c = permute(ab1, cd1, 0x5410);
    d = permute(ab1, cd1, 0x7632);
}

// MN-major 8-bit Y: a thread transposes 4 rows of 16 k. Of a warp, neighbours take two pieces of k, then other rows:
// that shares the bank conflicts between loads and stores.
template <class T>
__device__ __forceinline__ void transpose_y(uint32_t y, uint32_t raw, int thread) {
    constexpr int groups = T::tile_y / 4;
#pragma unroll 1
    for (int unit = thread; unit < groups * 8; unit += kFillThreads) {
        const int piece = unit % 2 + unit / (2 * groups) * 2, row = unit / 2 % groups * 4;
        uint32_t w[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) w[i] = load_shared_4(raw + (piece * 16 + i) * T::y_line_bytes + row);
#pragma unroll
        for (int i = 0; i < 16; i += 4) transpose_4x4(w[i], w[i + 1], w[i + 2], w[i + 3]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            store_shared(y + swizzled<128>((row + j) * 128 + piece * 16), make_uint4(w[j], w[4 + j], w[8 + j], w[12 + j]));
    }
}

// K-major int4 Y: 8 bytes are 16 k of a row.
template <class T>
__device__ __forceinline__ void unpack_y(uint32_t y, uint32_t raw, int thread) {
#pragma unroll 1
    for (int unit = thread; unit < T::tile_y * 8; unit += kFillThreads) {
        uint4 v;
        int4_to_e4m3(load_shared_4(raw + unit * 8), v.x, v.y); // odd k first in each byte
        int4_to_e4m3(load_shared_4(raw + unit * 8 + 4), v.z, v.w);
        v = make_uint4(permute(v.x, v.x, 0x2301), permute(v.y, v.y, 0x2301), permute(v.z, v.z, 0x2301),
                       permute(v.w, v.w, 0x2301));
        store_shared(y + swizzled<128>(unit * 16), v);
    }
}

// MN-major int4 Y: a byte holds two rows of one k; a thread takes 8 rows of 4 k. row0: of the tile, whose lines begin at
// a multiple of 16 bytes, as the copy engine wants.
template <class T>
__device__ __forceinline__ void transpose_unpack_y(uint32_t y, uint32_t raw, int row0, int thread) {
    raw += row0 / 2 % 16;
    constexpr int groups = T::tile_y / 8;
#pragma unroll 1
    for (int unit = thread; unit < groups * 32; unit += kFillThreads) {
        const int row = unit % groups * 8, k = unit / groups * 4;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = load_shared_4(raw + (k + i) * T::y_line_bytes + row / 2);
        transpose_4x4(w[0], w[1], w[2], w[3]); // now 4 k of one pair of rows each
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t low, high;
            int4_to_e4m3(w[j], low, high); // the even row is the high nibble
            store_shared(y + swizzled<128>((row + 2 * j) * 128 + k), permute(low, high, 0x7531));
            store_shared(y + swizzled<128>((row + 2 * j + 1) * 128 + k), permute(low, high, 0x6420));
        }
    }
}

template <class T>
__device__ __forceinline__ void convert_y(uint32_t y, uint32_t raw, int row0, int thread) {
    if constexpr (T::y_mn && T::y_i4) {
        transpose_unpack_y<T>(y, raw, row0, thread);
    } else if constexpr (T::y_i4) {
        unpack_y<T>(y, raw, thread);
    } else {
        transpose_y<T>(y, raw, thread);
    }
}

} // namespace gemmill
