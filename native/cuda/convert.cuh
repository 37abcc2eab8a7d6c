// Ahead of the kernel: K-major copies, a byte an element, of operands that wgmma can't read from shared memory as they
// are stored, so that they are transposed and unpacked once, and not again in every tile.
//
// A thread brings 16 k of 16 rows through registers, or of 4 where there is nothing to transpose. All memory is read and
// written in whole sectors: of a warp, four neighbours share lines that lie along the rows, eight those along k.
#pragma once
#include "fill.cuh"

namespace gemmill {

// Not by the read-only path either; and once.
template <int pieces>
__device__ __forceinline__ void load_global(uint32_t (&w)[2][pieces], int i, const uint8_t* p) {
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(w[0][i]), "=r"(w[1][i]) : "l"(p) : "memory");
}
template <int pieces>
__device__ __forceinline__ void load_global(uint32_t (&w)[4][pieces], int i, const uint8_t* p) {
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0][i]), "=r"(w[1][i]), "=r"(w[2][i]), "=r"(w[3][i]) : "l"(p) : "memory");
}
__device__ __forceinline__ void store_global(uint8_t* p, uint4 v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Pieces, each of a line `step` after the one before; zeros for lines that are not there. A piece that goes beyond
// its line reads the gap before the next one, which pitches of whole 16 bytes leave; the last line may end where memory
// ends.
template <int step, int words, int pieces>
__device__ __forceinline__ void load_pieces(uint32_t (&w)[words][pieces], const Conversion& s, int lines, int line_bytes, int line,
                                            int offset) {
    const int inside = line_bytes - offset;
    const int whole = inside < 4 * words ? lines - 1 : lines;
    const uint8_t* p = s.from + line * s.pitch + offset;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int c = 0; c < words; ++c) w[c][i] = 0;
        if (line + i * step < whole) load_global(w, i, p + i * step * s.pitch);
    }
    if (whole == lines) return;
    const uint8_t* last = s.from + whole * s.pitch + offset;
#pragma unroll
    for (int c = 0; c < words; ++c) {
        const uint32_t word = gather_4([&](int i) { return 4 * c + i < inside ? load_global(last + 4 * c + i) : 0u; });
#pragma unroll
        for (int i = 0; i < pieces; ++i)
            if (line + i * step == whole) w[c][i] = word;
    }
}

// Sixteen codes of a line along k.
__device__ __forceinline__ uint4 unpack_16(uint32_t first, uint32_t second) {
    uint4 v;
    int4_to_e4m3(first, v.x, v.y); // odd k first in each byte
    int4_to_e4m3(second, v.z, v.w);
    return make_uint4(permute(v.x, v.x, 0x2301), permute(v.y, v.y, 0x2301), permute(v.z, v.z, 0x2301), permute(v.w, v.w, 0x2301));
}

// Sixteen k of a pair of rows, a byte each, to one row: 0 is the even one, which is the high nibble.
template <int odd>
__device__ __forceinline__ uint4 unpack_row(uint4 pairs) {
    const auto four = [](uint32_t w) {
        uint32_t low, high;
        int4_to_e4m3(w, low, high);
        return permute(low, high, odd ? 0x6420 : 0x7531);
    };
    return make_uint4(four(pairs.x), four(pairs.y), four(pairs.z), four(pairs.w));
}

// Ones in the bytes of word i that are before `count`.
__device__ __forceinline__ uint32_t bytes_before(int count, int i) {
    return count >= 4 * i + 4 ? ~0u : count <= 4 * i ? 0u : (1u << 8 * (count - 4 * i)) - 1;
}

template <Elem elem, bool mn>
__device__ __forceinline__ void convert_operand(const Conversion& s, int k, int block, int thread) {
    constexpr bool i4 = elem == Elem::i4;
    static_assert(mn || i4, "nothing to convert");
    constexpr int words = i4 ? 2 : 4, per_byte = i4 ? 2 : 1, pieces = mn ? 16 : 4, rows = kConvertRows<mn>;
    const int lane = thread % 32, across = (s.rows + rows - 1) / rows;
    const int row = block % across * rows + thread / 32 * (rows / 4) + (mn ? lane % 4 * 16 : lane / 8);
    const int k0 = block / across * kConvertK + (mn ? lane / 4 : lane % 8) * 16;
    if (row >= s.rows || k0 >= k) return;

    uint32_t w[words][pieces];
    if constexpr (mn) {
        load_pieces<1>(w, s, k, (s.rows + per_byte - 1) / per_byte, k0, row / per_byte);
    } else {
        load_pieces<4>(w, s, s.rows, (k + 1) / 2, row, k0 / 2);
    }
    const uint4 inside = make_uint4(bytes_before(k - k0, 0), bytes_before(k - k0, 1), bytes_before(k - k0, 2), bytes_before(k - k0, 3));
    const auto store = [&](int r, uint4 v) {
        if (r < s.rows)
            store_global(s.to + r * s.to_pitch + k0, make_uint4(v.x & inside.x, v.y & inside.y, v.z & inside.z, v.w & inside.w));
    };
    if constexpr (mn) {
#pragma unroll
        for (int c = 0; c < words; ++c) {
            uint32_t(&of)[pieces] = w[c];
#pragma unroll
            for (int i = 0; i < 16; i += 4) transpose_4x4(of[i], of[i + 1], of[i + 2], of[i + 3]);
#pragma unroll
            for (int j = 0; j < 4; ++j) { // 4 k of byte j are in words j, 4 + j, 8 + j, 12 + j
                const uint4 v = make_uint4(of[j], of[4 + j], of[8 + j], of[12 + j]);
                if constexpr (i4) {
                    store(row + 8 * c + 2 * j, unpack_row<0>(v));
                    store(row + 8 * c + 2 * j + 1, unpack_row<1>(v));
                } else {
                    store(row + 4 * c + j, v);
                }
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < pieces; ++i) store(row + 4 * i, unpack_16(w[0][i], w[1][i]));
    }
}

template <class C>
__device__ __forceinline__ void convert(const Conversions& p) {
    grid_release();
    grid_wait(); // for the operands, and for the kernel in front, which may still read the same workspace
    const int block = blockIdx.x, thread = threadIdx.x;
    if constexpr (Plain<C>::copies_a) {
        if (block < p.a_blocks) return convert_operand<C::a, C::a_col>(p.a, p.k, block, thread);
    }
    if constexpr (Plain<C>::copies_b) convert_operand<C::b, !C::b_col>(p.b, p.k, block - p.a_blocks, thread);
}

} // namespace gemmill

// The two entries that a kernel has beside those of GEMMILL_KERNEL where it converts operands ahead.
#define GEMMILL_CONVERSION(Config)                                                          \
    GEMMILL_ENTRY(gemmill_plain, gemmill::Plain<Config>)                                    \
    extern "C" __global__ void __launch_bounds__(gemmill::kConvertThreads)                  \
        gemmill_convert(const __grid_constant__ gemmill::Conversions p) {                   \
        gemmill::convert<Config>(p);                                                        \
    }
