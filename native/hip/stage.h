/* Staging of operand tiles: global memory to registers (fetch), registers to LDS (commit).
 *
 * An operand is a matrix of rows (m of A, n of B) by k. The two steps are apart so that the next tile's loads
 * run while this one is computed. Beyond K a tile must be zero, in A and in B, since 0 * NaN would not vanish.
 * Rows beyond the last one may hold anything: their results are never stored. So only the end of K, and the end
 * of the whole matrix, need care; tiles there that whole chunks don't fit are filled by element (`fill_edge`). */
#ifndef GEMMILL_HIP_STAGE_H
#define GEMMILL_HIP_STAGE_H

#include "convert.h"
#include "device.h"
#include "mfma.h"
#include "tile.h"

/* One operand as a block sees it. */
struct Operand {
    const void* base;
    i64 ld;          // elements
    i64 row0, rows;  // the block's first row, and how many the matrix has
    i64 k_end;       // K
};

// ELEMENTS consecutive elements of KIND, packed in memory order.
template <Kind KIND, int ELEMENTS>
struct Packed {
    static constexpr int WORDS = ELEMENTS * bits_of(KIND) / 32;
    u32 word[WORDS];
};

template <Kind KIND, int ELEMENTS>
Packed<KIND, ELEMENTS> load_chunk(const void* base, i64 element) {
    return global_load<Packed<KIND, ELEMENTS>>((const u8*)base + element * bits_of(KIND) / 8);
}

inline u32 byte_at(const void* base, i64 index) { return global_load<u8>((const u8*)base + index); }

// One element as the byte that convert_codes takes: an fp8 byte, or an int4 code.
template <Kind KIND>
u32 element_at(const void* base, i64 index) {
    if constexpr (KIND != Kind::int4) return byte_at(base, index);
    return byte_at(base, index >> 1) >> (index & 1 ? 0 : 4) & 0xf;  // the even element is the high nibble
}

constexpr u32 zero_word(Kind kind) { return kind == Kind::int4 ? INT4_ZERO : 0; }

/* ---- Operand words ------------------------------------------------------------------------------------ */

// What four consecutive elements become in LDS: one word of fp8, or two of bf16.
template <Arch ARCH>
struct Quad {
    u32 word[operand_bytes(ARCH)];
};

// Four elements of one byte each. B's kind decides how int4 is represented.
template <Arch ARCH, Kind KIND, Kind B_KIND>
Quad<ARCH> convert_codes(u32 codes) {
    if constexpr (ARCH == Arch::gfx90a && KIND == Kind::int4) return bit_cast<Quad<ARCH>>(int4_to_bf16(codes));
    else if constexpr (ARCH == Arch::gfx90a) return bit_cast<Quad<ARCH>>(fp8_to_bf16<KIND, ARCH>(codes));
    else if constexpr (KIND == Kind::int4) return {int4_to_fp8<B_KIND, ARCH>(codes)};
    else return {codes};
}

// Quad `i` of a chunk.
template <Arch ARCH, Kind KIND, Kind B_KIND, int ELEMENTS>
Quad<ARCH> convert_quad(const Packed<KIND, ELEMENTS>& chunk, int i) {
    if constexpr (KIND == Kind::int4) return convert_codes<ARCH, KIND, B_KIND>(int4_codes(chunk.word[i / 2])[i % 2]);
    else return convert_codes<ARCH, KIND, B_KIND>(chunk.word[i]);
}

template <class Memory, Arch ARCH>
void store_quad(u32 offset, Quad<ARCH> quad) {
    if constexpr (sizeof(quad) == 8) Memory::template store<u32x2>(offset, bit_cast<u32x2>(quad));
    else Memory::template store<u32>(offset, quad.word[0]);
}

/* ---- Operand tiles ------------------------------------------------------------------------------------ */

// Fill a tile element by element, straight into LDS: any shape, any parity of int4.
template <class Memory, class Shape, Kind KIND, int ROWS, bool K_CONTIGUOUS>
void fill_edge(u32 lds, const Operand& x, i64 k0) {
    constexpr Arch ARCH = Shape::ARCH;
    constexpr u32 ROW_QUADS = Shape::TILE_K / 4;
#pragma nounroll
    for (u32 q = thread_index(); q < ROWS * ROW_QUADS; q += Shape::THREADS) {
        const u32 row = q / ROW_QUADS;
        const u32 k = q % ROW_QUADS * 4;
        u32 codes = zero_word(KIND) & 0x0f0f0f0f;
#pragma nounroll
        for (int j = 0; j < 4; ++j) {
            const i64 m = x.row0 + row, kk = k0 + k + j;
            if (m >= x.rows || kk >= x.k_end) continue;
            const u32 code = element_at<KIND>(x.base, K_CONTIGUOUS ? m * x.ld + kk : kk * x.ld + m);
            codes = (codes & ~(0xffu << 8 * j)) | code << 8 * j;
        }
        const u32 offset = Tile<ROWS, Shape::TILE_K * operand_bytes(ARCH)>::offset(row, k * operand_bytes(ARCH));
        store_quad<Memory>(lds + offset, convert_codes<ARCH, KIND, Shape::B_KIND>(codes));
    }
}

// K is contiguous in memory: a chunk of one row goes to LDS as it lies.
template <class Shape, Kind KIND, int ROWS, bool K_CONTIGUOUS>
struct OperandStage {
    static constexpr Arch ARCH = Shape::ARCH;
    static constexpr int ELEMENTS = CHUNK * 8 / bits_of(KIND);
    static constexpr int ROW_CHUNKS = Shape::TILE_K / ELEMENTS;
    static constexpr int CHUNKS = ROWS * ROW_CHUNKS;
    static constexpr int PER_THREAD = ceil_div(CHUNKS, Shape::THREADS);
    static_assert(Shape::THREADS % ROW_CHUNKS == 0, "a thread keeps its k");
    using OperandTile = Tile<ROWS, Shape::TILE_K * operand_bytes(ARCH)>;

    Operand x;
    i64 row_start[PER_THREAD];  // elements
    Packed<KIND, ELEMENTS> chunk[PER_THREAD];

    explicit OperandStage(const Operand& operand) : x(operand) {
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            const i64 row = x.row0 + row_of(i);
            row_start[i] = (row < x.rows ? row : x.rows - 1) * x.ld;
        }
    }

    // Whole chunks make up the tile.
    bool regular(i64 k0) const {
        const bool whole_bytes = KIND != Kind::int4 || x.ld % 2 == 0;
        return whole_bytes && (k0 + Shape::TILE_K <= x.k_end || x.k_end % ELEMENTS == 0);
    }

    void fetch(i64 k0) {
        if (!regular(k0)) return;
        const i64 k = k0 + k_of();
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            if (!takes_part(i)) continue;
            GEMMILL_UNROLL
            for (u32& word : chunk[i].word) word = zero_word(KIND);
            if (k < x.k_end) chunk[i] = load_chunk<KIND, ELEMENTS>(x.base, row_start[i] + k);
        }
    }

    template <class Memory>
    void commit(u32 lds, i64 k0) const {
        if (!regular(k0)) return fill_edge<Memory, Shape, KIND, ROWS, true>(lds, x, k0);
        constexpr int QUADS = CHUNK / (4 * operand_bytes(ARCH));  // in one LDS store
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            if (!takes_part(i)) continue;
            GEMMILL_UNROLL
            for (int j = 0; j < ELEMENTS / (4 * QUADS); ++j) {
                struct {
                    Quad<ARCH> quad[QUADS];
                } out;
                GEMMILL_UNROLL
                for (int q = 0; q < QUADS; ++q)
                    out.quad[q] = convert_quad<ARCH, KIND, Shape::B_KIND>(chunk[i], j * QUADS + q);
                const u32 byte = k_of() * operand_bytes(ARCH) + j * CHUNK;
                Memory::template store<u32x4>(lds + OperandTile::offset(row_of(i), byte), bit_cast<u32x4>(out));
            }
        }
    }

   private:
    static u32 row_of(int i) { return (thread_index() + i * Shape::THREADS) / ROW_CHUNKS; }
    static u32 k_of() { return thread_index() % ROW_CHUNKS * ELEMENTS; }
    static bool takes_part(int i) {
        return CHUNKS % Shape::THREADS == 0 || thread_index() + i * Shape::THREADS < CHUNKS;
    }
};

// Rows are contiguous in memory: a thread takes a block of 4 k by ELEMENTS rows and transposes it in registers.
template <class Shape, Kind KIND, int ROWS>
struct OperandStage<Shape, KIND, ROWS, false> {
    static constexpr Arch ARCH = Shape::ARCH;
    static constexpr int WIDEST = CHUNK * 8 / bits_of(KIND);
    static constexpr int ELEMENTS = WIDEST < ROWS ? WIDEST : ROWS;
    static constexpr int K_CHUNKS = ROWS / ELEMENTS;  // of one k
    static constexpr int BLOCKS = K_CHUNKS * Shape::TILE_K / 4;
    static constexpr int PER_THREAD = ceil_div(BLOCKS, Shape::THREADS);
    static_assert(Shape::THREADS % K_CHUNKS == 0, "a thread keeps its rows");
    using OperandTile = Tile<ROWS, Shape::TILE_K * operand_bytes(ARCH)>;

    Operand x;
    Packed<KIND, ELEMENTS> chunk[PER_THREAD][4];

    explicit OperandStage(const Operand& operand) : x(operand) {}

    // Whole chunks make up the tile. One that runs past its last row reads the next k's rows instead, which is
    // harmless, but must not run past the matrix.
    bool regular(i64 k0) const {
        const i64 k_stop = k0 + Shape::TILE_K < x.k_end ? k0 + Shape::TILE_K : x.k_end;
        const i64 stop = (k_stop - 1) * x.ld + x.row0 + ROWS;
        const bool whole_bytes = KIND != Kind::int4 || x.ld % 2 == 0;
        return whole_bytes && k_stop % 4 == 0 && stop <= (x.k_end - 1) * x.ld + x.rows;
    }

    void fetch(i64 k0) {
        if (!regular(k0)) return;
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            if (!takes_part(i)) continue;
            const i64 k = k0 + k_of(i);
            GEMMILL_UNROLL
            for (int j = 0; j < 4; ++j) {
                GEMMILL_UNROLL
                for (u32& word : chunk[i][j].word) word = zero_word(KIND);
                if (k < x.k_end) chunk[i][j] = load_chunk<KIND, ELEMENTS>(x.base, (k + j) * x.ld + x.row0 + row_of());
            }
        }
    }

    template <class Memory>
    void commit(u32 lds, i64 k0) const {
        if (!regular(k0)) return fill_edge<Memory, Shape, KIND, ROWS, false>(lds, x, k0);
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            if (!takes_part(i)) continue;
            GEMMILL_UNROLL
            for (int q = 0; q < ELEMENTS / 4; ++q) {
                Quad<ARCH> in[4], out[4];
                GEMMILL_UNROLL
                for (int j = 0; j < 4; ++j) in[j] = convert_quad<ARCH, KIND, Shape::B_KIND>(chunk[i][j], q);
                transpose(in, out);
                GEMMILL_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const u32 byte = k_of(i) * operand_bytes(ARCH);
                    store_quad<Memory>(lds + OperandTile::offset(row_of() + 4 * q + j, byte), out[j]);
                }
            }
        }
    }

   private:
    static u32 row_of() { return thread_index() % K_CHUNKS * ELEMENTS; }
    static u32 k_of(int i) { return (thread_index() + i * Shape::THREADS) / K_CHUNKS * 4; }
    static bool takes_part(int i) {
        return BLOCKS % Shape::THREADS == 0 || thread_index() + i * Shape::THREADS < BLOCKS;
    }

    // 4 k of 4 rows each to 4 rows of 4 k each.
    static void transpose(const Quad<ARCH> (&in)[4], Quad<ARCH> (&out)[4]) {
        if constexpr (operand_bytes(ARCH) == 2) {
            GEMMILL_UNROLL
            for (int j = 0; j < 4; ++j)
                GEMMILL_UNROLL
                for (int w = 0; w < 2; ++w)
                    out[j].word[w] = permute_bytes(in[2 * w + 1].word[j / 2], in[2 * w].word[j / 2],
                                                   j % 2 ? 0x07060302 : 0x05040100);
        } else {
            const u32 low01 = permute_bytes(in[1].word[0], in[0].word[0], 0x05010400);
            const u32 low23 = permute_bytes(in[3].word[0], in[2].word[0], 0x05010400);
            const u32 high01 = permute_bytes(in[1].word[0], in[0].word[0], 0x07030602);
            const u32 high23 = permute_bytes(in[3].word[0], in[2].word[0], 0x07030602);
            out[0].word[0] = permute_bytes(low23, low01, 0x05040100);
            out[1].word[0] = permute_bytes(low23, low01, 0x07060302);
            out[2].word[0] = permute_bytes(high23, high01, 0x05040100);
            out[3].word[0] = permute_bytes(high23, high01, 0x07060302);
        }
    }
};

/* ---- Scales ------------------------------------------------------------------------------------------- */

// The scales of one tile, as floats in LDS: [group][row].
template <class Shape>
struct ScaleStage {
    static constexpr int GROUPS = Shape::TILE_K / GROUP_K;
    static constexpr int VALUES = Shape::TILE_M * GROUPS;
    static constexpr int PER_THREAD = ceil_div(VALUES, Shape::THREADS);
    static constexpr int BYTES = VALUES * 4;

    Operand x;  // k_end counts groups here
    float value[PER_THREAD];

    explicit ScaleStage(const Operand& operand) : x(operand) {}

    void fetch(i64 tile) {
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            const u32 index = thread_index() + i * Shape::THREADS;
            const i64 m = x.row0 + row_of(index);
            value[i] = 0;
            if (index >= VALUES || m >= x.rows || tile * GROUPS + group_of(index) >= x.k_end) continue;
            const i64 at = element(m, tile, group_of(index));
            if constexpr (Shape::AQ_KIND == Kind::f32)
                value[i] = global_load<float>((const float*)x.base + at);
            else
                value[i] = fp8_to_float<Shape::AQ_KIND, Shape::ARCH>(byte_at(x.base, at));
        }
    }

    template <class Memory>
    void commit(u32 lds) const {
        GEMMILL_UNROLL
        for (int i = 0; i < PER_THREAD; ++i) {
            const u32 index = thread_index() + i * Shape::THREADS;
            if (index < VALUES)
                Memory::template store<float>(lds + 4 * (group_of(index) * Shape::TILE_M + row_of(index)), value[i]);
        }
    }

   private:
    // Neighbouring threads read neighbouring scales.
    static u32 row_of(u32 i) { return Shape::AQ_COL ? i % Shape::TILE_M : i / GROUPS; }
    static u32 group_of(u32 i) { return Shape::AQ_COL ? i / Shape::TILE_M : i % GROUPS; }

    i64 element(i64 m, i64 tile, u32 group) const {
        if constexpr (Shape::PRESHUFFLED) return tile * x.ld + m * GROUPS + group;
        else if constexpr (Shape::AQ_COL) return (tile * GROUPS + group) * x.ld + m;
        else return m * x.ld + tile * GROUPS + group;
    }
};

#endif /* GEMMILL_HIP_STAGE_H */
