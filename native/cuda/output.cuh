// From accumulators to C: through shared memory, so that rows leave in whole 16-byte pieces.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ptx.cuh"

namespace gemmill {

template <Elem out>
struct Out;
template <>
struct Out<Elem::f16> {
    using type = uint16_t;
    static __device__ __forceinline__ uint16_t one(float v) { return __half_as_ushort(__float2half_rn(v)); }
    static __device__ __forceinline__ uint32_t two(float a, float b) {
        const __half2 h = __floats2half2_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
};
template <>
struct Out<Elem::bf16> {
    using type = uint16_t;
    static __device__ __forceinline__ uint16_t one(float v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
    static __device__ __forceinline__ uint32_t two(float a, float b) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
};
template <>
struct Out<Elem::f32> {
    using type = float;
    static __device__ __forceinline__ float one(float v) { return v; }
    static __device__ __forceinline__ float2 two(float a, float b) { return make_float2(a, b); }
};

// A block in shared memory, in boxes of 128 bytes of each row; of a row's eight 16-byte pieces each is where the copy
// engine's 128-byte swizzle has it, which also keeps writers off each other's banks.
template <int rows, int columns, int element>
struct Staging {
    static constexpr int per_piece = 16 / element;
    static constexpr int box_columns = 128 / element;
    static constexpr int boxes = columns / box_columns;
    static constexpr int box_bytes = rows * 128;
    static_assert(columns % box_columns == 0, "whole boxes");
    uint32_t base;

    __device__ __forceinline__ uint32_t piece(int row, int i) const {
        return base + i / 8 * box_bytes + row * 128 + ((i ^ row) & 7) * 16;
    }
    __device__ __forceinline__ uint32_t at(int row, int column) const {
        return piece(row, column / per_piece) + column % per_piece * element;
    }
};

// One 64 x chunk block of accumulators (rows x, columns y), as values of type `out`.
template <class C, class T, Elem out, int rows, int columns>
__device__ __forceinline__ void stage_block(const Staging<rows, columns, bytes_of(out)>& s, const float (&d)[T::chunk / 2], int row0,
                                            int column0, const int (&x)[2], int q) {
    using O = Out<out>;
#pragma unroll
    for (int j = 0; j < T::chunk / 8; ++j) {
        const int y = 8 * j + 2 * q;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float a = d[4 * j + 2 * i], b = d[4 * j + 2 * i + 1];
            if constexpr (C::swap) {
                store_shared(s.at(row0 + y, column0 + x[i]), O::one(a));
                store_shared(s.at(row0 + y + 1, column0 + x[i]), O::one(b));
            } else {
                store_shared(s.at(row0 + x[i], column0 + y), O::two(a, b));
            }
        }
    }
}

} // namespace gemmill
