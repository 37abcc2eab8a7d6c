// Filling a stage without the copy engine: by two warps, for operands it can't take (base or leading dimension not
// a multiple of 16 bytes) and for a Y that must be transposed or unpacked on its way in.
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
        return inside(row, kk) ? __ldg(base + index(row, kk)) : 0;
    }
    __device__ __forceinline__ uint32_t code(int row, int kk) const {
        if (!inside(row, kk)) return 0;
        const int64_t i = index(row, kk);
        return (__ldg(base + i / 2) >> (i & 1 ? 0 : 4)) & 15;
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

// MN-major 8-bit Y, rows a multiple of 4: a thread takes four rows of 8 k, 4 bytes a load, and transposes them in
// registers. Neighbouring threads take 4 x 8 k of up to 32 rows: whole sectors to load, few bank conflicts to store.
template <class T>
struct TransposeUnit {
    static constexpr int units = T::tile_y / 4 * 16;
    static constexpr int registers = 8;
    uint32_t w[8];

    struct Place {
        int row, k;
    };
    static __device__ __forceinline__ Place place(int unit) {
        constexpr int low = T::tile_y >= 32 ? 8 : T::tile_y / 4, high = T::tile_y / 4 / low;
        const int rows = unit / 4 % low + unit / (4 * low) % high * low;
        return {rows * 4, (unit % 4 + unit / (4 * low * high) * 4) * 8};
    }
    template <class S>
    __device__ __forceinline__ void load(const S& s, int row0, int k0, int unit) {
        const Place at = place(unit);
        const int count = row0 + at.row < s.rows ? s.k - k0 - at.k : 0;
        const uint8_t* p = s.base + s.index(row0 + at.row, k0 + at.k);
#pragma unroll
        for (int i = 0; i < 8; ++i, p += s.ld) w[i] = i < count ? __ldg(reinterpret_cast<const uint32_t*>(p)) : 0;
    }
    __device__ __forceinline__ void store(uint32_t y, int unit) {
        const Place at = place(unit);
        transpose_4x4(w[0], w[1], w[2], w[3]);
        transpose_4x4(w[4], w[5], w[6], w[7]);
#pragma unroll
        for (int j = 0; j < 4; ++j) store_shared(y + swizzled<128>((at.row + j) * 128 + at.k), make_uint2(w[j], w[4 + j]));
    }
};

// K-major int4 Y: 8 bytes a load make 16 bytes.
template <class T>
struct UnpackUnit {
    static constexpr int units = T::tile_y * 8;
    static constexpr int registers = 2;
    uint2 w;

    template <class S>
    __device__ __forceinline__ void load(const S& s, int row0, int k0, int unit) {
        const int row = row0 + unit / 8, kk = k0 + unit % 8 * 16;
        w = make_uint2(0, 0);
        if (row >= s.rows || kk >= s.k) return;
        const uint8_t* p = s.base + s.index(row, kk) / 2;
        if (kk + 16 <= s.k) {
            w = __ldg(reinterpret_cast<const uint2*>(p));
        } else {
            for (int j = 0; j < 8; ++j)
                if (kk + 2 * j < s.k) (j < 4 ? w.x : w.y) |= uint32_t(__ldg(p + j)) << (j % 4 * 8);
        }
    }
    __device__ __forceinline__ void store(uint32_t y, int unit) {
        uint4 v;
        int4_to_e4m3(w.x, v.x, v.y);
        int4_to_e4m3(w.y, v.z, v.w);
        v = make_uint4(permute(v.x, v.x, 0x2301), permute(v.y, v.y, 0x2301), permute(v.z, v.z, 0x2301), permute(v.w, v.w, 0x2301));
        store_shared(y + swizzled<128>(unit / 8 * 128 + unit % 8 * 16), v);
    }
};

template <class T>
using VectorUnit = typename std::conditional_t<T::y_i4, UnpackUnit<T>, TransposeUnit<T>>;

} // namespace gemmill
