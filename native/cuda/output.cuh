// From accumulators to C: through shared memory, so that rows leave in whole 16-byte pieces.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fragment.cuh"
#include "ptx.cuh"

namespace gemmill {

template <Elem out>
struct Out;
template <>
struct Out<Elem::f16> {
    static __device__ __forceinline__ uint32_t two(float a, float b) {
        const __half2 h = __floats2half2_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
};
template <>
struct Out<Elem::bf16> {
    static __device__ __forceinline__ uint32_t two(float a, float b) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
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

// One 64 x chunk block of a warpgroup's accumulators (rows x, columns y). A thread holds pairs of columns of two rows, as
// stmatrix wants them; where the operands are swapped C's rows are the columns, and it transposes.
template <class C, class T, int rows, int columns>
__device__ __forceinline__ void stage_block(const Staging<rows, columns, T::out_bytes>& s, const float (&d)[T::chunk / 2], int warp,
                                            int lane) {
    using O = Out<C::out>;
    if constexpr (C::swap && T::x_mn) { // a thread's two rows lie side by side
        const int x = fragment_row<T::x_mn, T::x_i4>(warp, lane, 0), q = lane % 4;
#pragma unroll
        for (int j = 0; j < T::chunk / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) store_shared(s.at(8 * j + 2 * q + e, x), O::two(d[4 * j + e], d[4 * j + 2 + e]));
    } else {
        // Four 8 x 8 matrices at a time; this lane gives the address of one row.
        const int r = lane % 8, half = lane / 8 % 2, right = lane / 16;
        uint32_t at;
        if constexpr (C::swap) {
            at = s.piece(8 * right + r, 2 * warp + half);
        } else {
            at = s.piece(fragment_row<T::x_mn, T::x_i4>(warp, 4 * r, half), right);
        }
#pragma unroll
        for (int j = 0; j < T::chunk / 8; j += 2) {
            const uint32_t v[4] = {O::two(d[4 * j], d[4 * j + 1]), O::two(d[4 * j + 2], d[4 * j + 3]),
                                   O::two(d[4 * j + 4], d[4 * j + 5]), O::two(d[4 * j + 6], d[4 * j + 7])};
            if constexpr (C::swap) {
                store_matrices_transposed(at + j * 1024, v); // 8 rows of 128 bytes further
            } else {
                store_matrices((at ^ (j % 8 * 16)) + j / 8 * s.box_bytes, v); // j is even: piece j + right
            }
        }
    }
}

} // namespace gemmill
