/* Staging of operand tiles: global memory to registers (fetch), registers to LDS (commit).
 *
 * An operand is a matrix of rows (m of A, n of B) by k. The two steps are apart so that the next tile's loads
 * run while this one is computed; that is why they have no branches of single lanes: at each, the compiler would
 * wait for all loads in flight. Lanes without work repeat another's loads instead, and addresses are clamped.
 *
 * Beyond K a tile must be zero, in A and in B, since 0 * NaN would not vanish. Rows beyond the last one may hold
 * anything: their results are never stored. So only the end of K, and the end of the whole matrix, need care; the
 * tiles there that whole chunks don't make up are filled by element instead (`fill_edge`). */
#pragma once

#include "hip/convert.h"
#include "hip/device.h"
#include "hip/mfma.h"
#include "hip/tile.h"

namespace gemmill::hip {

/* One operand as a block sees it. */
struct Operand {
    const void* base;
    i64 ld;          // elements
    int row0, rows;  // the block's first row, and how many the matrix has
    int k_end;       // K
};

// kElements consecutive elements of kKind, packed in memory order.
template <Kind kKind, int kElements>
struct Packed {
    static constexpr int kWords = kElements * bits_of(kKind) / 32;
    u32 word[kWords];

    static Packed zero() {
        Packed packed;
        GEMMILL_UNROLL
        for (u32& one : packed.word) one = kKind == Kind::int4 ? kInt4Zero : 0;
        return packed;
    }
};

template <Kind kKind, int kElements>
Packed<kKind, kElements> load_chunk(const void* base, i64 element) {
    using Chunk = Packed<kKind, kElements>;
    using Value = typename Words<Chunk::kWords>::Value;  // clang before 20 copies no struct out of an address space
    return bit_cast<Chunk>(global_load<Value>((const u8*)base + element * bits_of(kKind) / 8));
}

inline u32 byte_at(const void* base, i64 index) { return global_load<u8>((const u8*)base + index); }

// One element as the byte that convert_codes takes: an fp8 byte, or an int4 code.
template <Kind kKind>
u32 element_at(const void* base, i64 index) {
    if constexpr (kKind != Kind::int4) return byte_at(base, index);
    return byte_at(base, index >> 1) >> (index & 1 ? 0 : 4) & 0xf;  // the even element is the high nibble
}

constexpr u32 zero_word(Kind kind) { return kind == Kind::int4 ? kInt4Zero : 0; }

/* ---- Operand words ------------------------------------------------------------------------------------ */

// What four consecutive elements become in LDS: one word of fp8, or two of bf16.
template <Arch kArch>
struct Quad {
    u32 word[operand_bytes(kArch)];
};

// Four elements of one byte each. B's kind decides how int4 is represented.
template <Arch kArch, Kind kKind, Kind kKindB>
Quad<kArch> convert_codes(u32 codes) {
    if constexpr (kArch == Arch::gfx90a && kKind == Kind::int4) return bit_cast<Quad<kArch>>(int4_to_bf16(codes));
    else if constexpr (kArch == Arch::gfx90a) return bit_cast<Quad<kArch>>(fp8_to_bf16<kKind, kArch>(codes));
    else if constexpr (kKind == Kind::int4) return {int4_to_fp8<kKindB, kArch>(codes)};
    else return {codes};
}

// Quad `i` of a chunk.
template <Arch kArch, Kind kKind, Kind kKindB, int kElements>
Quad<kArch> convert_quad(const Packed<kKind, kElements>& chunk, int i) {
    if constexpr (kKind == Kind::int4) return convert_codes<kArch, kKind, kKindB>(int4_codes(chunk.word[i / 2])[i % 2]);
    else return convert_codes<kArch, kKind, kKindB>(chunk.word[i]);
}

template <class Memory, Arch kArch>
void store_quad(u32 offset, Quad<kArch> quad) {
    if constexpr (sizeof(quad) == 8) Memory::template store<u32x2>(offset, bit_cast<u32x2>(quad));
    else Memory::template store<u32>(offset, quad.word[0]);
}

/* ---- Operand tiles ------------------------------------------------------------------------------------ */

// Fill a tile element by element, straight into LDS: any shape, any parity of int4.
template <class Memory, class Shape, Kind kKind, int kRows, bool kContiguousK>
void fill_edge(u32 lds, const Operand& x, int k0) {
    constexpr Arch kArch = Shape::kArch;
    constexpr u32 kRowQuads = Shape::kTileK / 4;
#pragma nounroll
    for (u32 q = thread_index(); q < kRows * kRowQuads; q += Shape::kThreads) {
        const int row = q / kRowQuads;
        const int k = q % kRowQuads * 4;
        u32 codes = zero_word(kKind) & 0x0f0f0f0f;
        GEMMILL_UNROLL
        for (int j = 0; j < 4; ++j) {
            const int r = x.row0 + row, kk = k0 + k + j;
            if (r >= x.rows || kk >= x.k_end) continue;
            const u32 code = element_at<kKind>(x.base, kContiguousK ? r * x.ld + kk : kk * x.ld + r);
            codes = (codes & ~(0xffu << 8 * j)) | code << 8 * j;
        }
        const u32 offset = Tile<kRows, Shape::kTileK * operand_bytes(kArch)>::offset(row, k * operand_bytes(kArch));
        store_quad<Memory>(lds + offset, convert_codes<kArch, kKind, Shape::kKindB>(codes));
    }
}

// How many elements a thread takes at once: up to 16 bytes, and fewer, down to `least`, where that leaves none idle.
constexpr int elements_at_once(Kind kind, int elements_a_thread, int least) {
    const int widest = kChunk * 8 / bits_of(kind);
    return elements_a_thread >= widest ? widest : elements_a_thread > least ? elements_a_thread : least;
}

template <Kind kKind>
bool whole_bytes(const Operand& x) {
    return kKind != Kind::int4 || x.ld % 2 == 0;
}

// K is contiguous in memory: a chunk of one row goes to LDS as it lies.
template <class Shape, Kind kKind, int kRows, bool kContiguousK>
struct OperandStage {
    static constexpr Arch kArch = Shape::kArch;
    // A store to LDS has 16 bytes.
    static constexpr int kElements =
        elements_at_once(kKind, kRows * Shape::kTileK / Shape::kThreads, kChunk / operand_bytes(kArch));
    static constexpr int kRowChunks = Shape::kTileK / kElements;
    static constexpr int kChunks = kRows * kRowChunks;
    static constexpr int kPerThread = ceil_div(kChunks, Shape::kThreads);
    static_assert(Shape::kThreads % kRowChunks == 0, "a thread keeps its k");
    using OperandTile = Tile<kRows, Shape::kTileK * operand_bytes(kArch)>;

    Operand x;
    i64 row_start[kPerThread];  // elements
    Packed<kKind, kElements> chunk[kPerThread];

    explicit OperandStage(const Operand& operand) : x(operand) {
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            const int row = x.row0 + row_of(i);
            row_start[i] = (row < x.rows ? row : x.rows - 1) * x.ld;
        }
    }

    // How many leading tiles whole chunks make up.
    int regular_tiles() const {
        if (!whole_bytes<kKind>(x)) return 0;
        return x.k_end % kElements == 0 ? ceil_div(x.k_end, Shape::kTileK) : x.k_end / Shape::kTileK;
    }

    void fetch(int k0) {
        const int k = k0 + k_of() < x.k_end ? k0 + k_of() : 0;
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) chunk[i] = load_chunk<kKind, kElements>(x.base, row_start[i] + k);
    }

    template <class Memory>
    void commit(u32 lds, int k0) {
        if (k0 + Shape::kTileK > x.k_end && k0 + k_of() >= x.k_end) {
            for (auto& one : chunk) one = Packed<kKind, kElements>::zero();
        }
        constexpr int kQuads = kChunk / (4 * operand_bytes(kArch));  // in one LDS store
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            if (!takes_part(i)) continue;
            GEMMILL_UNROLL
            for (int j = 0; j < kElements / (4 * kQuads); ++j) {
                struct {
                    Quad<kArch> quad[kQuads];
                } out;
                GEMMILL_UNROLL
                for (int q = 0; q < kQuads; ++q)
                    out.quad[q] = convert_quad<kArch, kKind, Shape::kKindB>(chunk[i], j * kQuads + q);
                const u32 byte = k_of() * operand_bytes(kArch) + j * kChunk;
                Memory::template store<u32x4>(lds + OperandTile::offset(row_of(i), byte), bit_cast<u32x4>(out));
            }
        }
    }

   private:
    static u32 index_of(int i) { return thread_index() + i * Shape::kThreads; }
    static bool takes_part(int i) { return kChunks % Shape::kThreads == 0 || index_of(i) < kChunks; }
    static int row_of(int i) { return index_of(i) % kChunks / kRowChunks; }
    static int k_of() { return thread_index() % kRowChunks * kElements; }
};

// Rows are contiguous in memory: a thread takes a block of 4 k by kElements rows and transposes it in registers.
template <class Shape, Kind kKind, int kRows>
struct OperandStage<Shape, kKind, kRows, false> {
    static constexpr Arch kArch = Shape::kArch;
    static constexpr int kElements =
        elements_at_once(kKind, kRows * Shape::kTileK / 4 / Shape::kThreads, 32 / bits_of(kKind));
    static_assert(kRows % kElements == 0, "chunks make up the rows");
    static constexpr int kKChunks = kRows / kElements;  // of one k
    static constexpr int kBlocks = kKChunks * Shape::kTileK / 4;
    static constexpr int kPerThread = ceil_div(kBlocks, Shape::kThreads);
    static_assert(Shape::kThreads % kKChunks == 0, "a thread keeps its rows");
    using OperandTile = Tile<kRows, Shape::kTileK * operand_bytes(kArch)>;

    Operand x;
    Packed<kKind, kElements> chunk[kPerThread][4];

    explicit OperandStage(const Operand& operand) : x(operand) {}

    // How many leading tiles whole chunks make up. A chunk that runs past the last row reads rows of the next k,
    // which is harmless, but must not run past the end of the matrix: the lines behind a tile must cover that.
    int regular_tiles() const {
        const int whole = x.k_end / Shape::kTileK, rest = x.k_end % Shape::kTileK;
        const int excess = x.row0 + kRows - x.rows;
        if (!whole_bytes<kKind>(x)) return 0;
        if (excess <= 0 && rest % 4 == 0) return ceil_div(x.k_end, Shape::kTileK);
        int hit = 0;
        GEMMILL_UNROLL
        for (int i = 0; i * Shape::kTileK < kRows; ++i) hit += (rest + i * Shape::kTileK) * x.ld < excess;
        return whole > hit ? whole - hit : 0;
    }

    void fetch(int k0) {
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            const int k = k0 + k_of(i) < x.k_end ? k0 + k_of(i) : 0;
            GEMMILL_UNROLL
            for (int j = 0; j < 4; ++j)
                chunk[i][j] = load_chunk<kKind, kElements>(x.base, (k + j) * x.ld + x.row0 + row_of());
        }
    }

    template <class Memory>
    void commit(u32 lds, int k0) {
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            if (!takes_part(i)) continue;
            if (k0 + Shape::kTileK > x.k_end && k0 + k_of(i) >= x.k_end) {
                for (auto& one : chunk[i]) one = Packed<kKind, kElements>::zero();
            }
            GEMMILL_UNROLL
            for (int q = 0; q < kElements / 4; ++q) {
                Quad<kArch> in[4], out[4];
                GEMMILL_UNROLL
                for (int j = 0; j < 4; ++j) in[j] = convert_quad<kArch, kKind, Shape::kKindB>(chunk[i][j], q);
                transpose(in, out);
                GEMMILL_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const u32 byte = k_of(i) * operand_bytes(kArch);
                    store_quad<Memory>(lds + OperandTile::offset(row_of() + 4 * q + j, byte), out[j]);
                }
            }
        }
    }

   private:
    static u32 index_of(int i) { return thread_index() + i * Shape::kThreads; }
    static bool takes_part(int i) { return kBlocks % Shape::kThreads == 0 || index_of(i) < kBlocks; }
    static int row_of() { return thread_index() % kKChunks * kElements; }
    static int k_of(int i) { return index_of(i) % kBlocks / kKChunks * 4; }

    // 4 k of 4 rows each to 4 rows of 4 k each.
    static void transpose(const Quad<kArch> (&in)[4], Quad<kArch> (&out)[4]) {
        if constexpr (operand_bytes(kArch) == 2) {
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
    static constexpr int kGroups = Shape::kTileK / kGroupK;
    static constexpr int kValues = Shape::kTileM * kGroups;
    static constexpr int kPerThread = ceil_div(kValues, Shape::kThreads);
    static constexpr int kBytes = kValues * 4;

    Operand x;  // k_end counts groups here
    u32 raw[kPerThread];

    explicit ScaleStage(const Operand& operand) : x(operand) {}

    void fetch(int tile) {
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            const int m = x.row0 + row_of(i);
            const i64 at = element(m < x.rows ? m : x.rows - 1, is_group(tile, i) ? tile * kGroups + group_of(i) : 0);
            if constexpr (Shape::kKindScale == Kind::f32) raw[i] = global_load<u32>((const float*)x.base + at);
            else raw[i] = byte_at(x.base, at);
        }
    }

    // Conversion waits until here, for the load to be in flight meanwhile. Groups beyond K count for nothing.
    template <class Memory>
    void commit(u32 lds, int tile) const {
        GEMMILL_UNROLL
        for (int i = 0; i < kPerThread; ++i) {
            float value;
            if constexpr (Shape::kKindScale == Kind::f32) value = bit_cast<float>(raw[i]);
            else value = fp8_to_float<Shape::kKindScale, Shape::kArch>(raw[i]);
            if (index_of(i) >= kValues) continue;
            Memory::template store<float>(lds + 4 * (group_of(i) * Shape::kTileM + row_of(i)),
                                          is_group(tile, i) ? value : 0.0f);
        }
    }

   private:
    // Neighbouring threads read neighbouring scales; those beyond the last one repeat.
    static u32 index_of(int i) { return thread_index() + i * Shape::kThreads; }
    static int row_of(int i) {
        const u32 value = index_of(i) % kValues;
        return Shape::kColumnScale ? value % Shape::kTileM : value / kGroups;
    }
    static int group_of(int i) {
        const u32 value = index_of(i) % kValues;
        return Shape::kColumnScale ? value / Shape::kTileM : value % kGroups;
    }
    bool is_group(int tile, int i) const { return tile * kGroups + group_of(i) < x.k_end; }

    i64 element(int m, int group) const {
        if constexpr (Shape::kPreshuffled) return group / kGroups * x.ld + m * kGroups + group % kGroups;
        else if constexpr (Shape::kColumnScale) return group * x.ld + m;
        else return m * x.ld + group;
    }
};

}  // namespace gemmill::hip
