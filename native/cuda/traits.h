// What a kernel's constants imply for both sides: tile shapes, shared memory, and the launch parameters.
//
// Words used throughout this folder:
//   X, Y     the two operands as wgmma sees them: X gives the 64-row side, Y the wide side. Normally X = A and
//            Y = B^T; with `swap`, X = B^T and Y = A, so that a small M does not waste a 64-row tile.
//   K-major  k is contiguous in memory; MN-major: the other index is. 8-bit wgmma reads only K-major tiles from
//            shared memory, so an MN-major X goes through registers and an MN-major Y is transposed on its way in.
#pragma once
#include <stdint.h>

namespace gemmill {

enum class Elem { e4m3, e5m2, i4, f32, f16, bf16 };

constexpr int bytes_of(Elem e) { return e == Elem::f32 ? 4 : e == Elem::f16 || e == Elem::bf16 ? 2 : 1; }

constexpr int kGroup = 128;            // k per scale; also k per pipeline stage
constexpr int kSmemMax = 227 * 1024;   // what one block can have on sm_90
constexpr int kSmemSm = 228 * 1024;    // what one multiprocessor has; each block reserves 1 KiB of it
constexpr int64_t kEarlyBytes = 4 << 20; // of weights that come into L2 ahead of their grid; measured
constexpr int kRegisters = 512;         // a thread, were there one warpgroup on a multiprocessor

// Same size and alignment as CUtensorMap, which device code does not need to know.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

// How a stage of an operand is filled.
enum class Fill {
    tma,     // by the copy engine
    convert, // by the copy engine as it is stored, then transposed or unpacked by two warps
    scalar,  // by two warps, an element a load: any alignment, any stride
};

// What a grid brings into L2 before the one in front of it has ended.
struct Early {
    int stages;              // of B, each block for its tile
    int a_lines, a_per_row;  // lines of 128 bytes of A that the grid's threads share, one each; 0: too many
    int aq_lines, aq_per_row;
};

struct Params {
    const uint8_t* x;
    const uint8_t* y;
    const void* aq;
    void* c;
    int64_t ldx, ldy, ldaq, ldc; // elements
    int m, n, k;
    int tiles_x, tiles_y, k_blocks;
    Early early;
    int store_c;   // the copy engine writes C
    int vector_aq; // four scales of a row can be loaded at once, from a group that is a multiple of 4
};

// What brings an operand to K-major, a byte an element, before the kernel runs (convert.cuh).
struct Conversion {
    const uint8_t* from; // lines as stored, `pitch` bytes apart
    uint8_t* to;         // [rows][to_pitch]
    int64_t pitch, to_pitch;
    int rows;
};
struct Conversions {
    Conversion a, b;
    int k, a_blocks; // the blocks after these are B's
};
constexpr int kConvertThreads = 128, kConvertK = 128; // of a block
// And its rows: a thread transposes 16 of MN-major lines, and unpacks 4 that are K-major.
template <bool mn>
constexpr int kConvertRows = mn ? 256 : 64;

// The kernel's twin for such copies.
template <class C>
struct Plain : C {
    static constexpr bool copies_a = C::a == Elem::i4 || C::a_col, copies_b = !C::b_col;
    static constexpr Elem a = C::a == Elem::i4 ? Elem::e4m3 : C::a;
    static constexpr bool a_col = C::a_col && !copies_a, b_col = true, swap = false;
    // From here on the copies cost less than what they save; measured. B is large where A is small.
    static constexpr int least_m = copies_b ? 512 : 64, least_n = 512;
    static constexpr int products = C::tile_m * C::tile_n <= 128 * 128 && !a_col ? 2 : 1;
};

// The kernel's twin for operands that the fast one can't take: same arithmetic, any alignment, a tile that fits.
template <class C>
struct Scalar : C {
    static constexpr bool scalar = true;
    static constexpr int tile_m = C::swap && C::tile_m > 64 ? 64 : !C::swap && C::tile_m > 128 ? 128 : C::tile_m;
    static constexpr int tile_n = !C::swap && C::tile_n > 64 ? 64 : C::swap && C::tile_n > 128 ? 128 : C::tile_n;
    static constexpr int parts = 1;
    static constexpr int blocks_per_sm = C::blocks_per_sm > 2 ? 2 : C::blocks_per_sm;
    static constexpr int products = 1;
};

template <class C>
struct Traits {
    static constexpr Elem x_elem = C::swap ? C::b : C::a;
    static constexpr Elem y_elem = C::swap ? C::a : C::b;
    static constexpr bool x_mn = C::swap ? !C::b_col : C::a_col;
    static constexpr bool y_mn = C::swap ? C::a_col : !C::b_col;
    static constexpr bool x_i4 = x_elem == Elem::i4;
    static constexpr bool y_i4 = y_elem == Elem::i4;
    static constexpr Fill x_fill = C::scalar ? Fill::scalar : Fill::tma;
    static constexpr Fill y_fill = C::scalar ? Fill::scalar : y_mn || y_i4 ? Fill::convert : Fill::tma;

    static constexpr int tile_x = C::swap ? C::tile_n : C::tile_m;
    static constexpr int tile_y = C::swap ? C::tile_m : C::tile_n;
    // One producer warpgroup, and consumers that share the rows of X.
    static constexpr int consumers = tile_x == 64 ? 1 : 2;
    static constexpr int threads = (1 + consumers) * 128;
    static constexpr int slabs = tile_x / (64 * consumers);    // 64-row slabs a consumer warpgroup owns
    static constexpr int chunk = tile_y % 128 ? tile_y : 128;  // columns of one wgmma
    static constexpr int chunks = tile_y / chunk;
    static_assert(tile_x % (64 * consumers) == 0 && tile_y % chunk == 0 && chunk % 16 == 0, "no such tile");
    static_assert(C::products == 1 || (C::products == 2 && slabs * chunks == 1), "registers for one product at a time");
    static_assert(!(C::swap && x_i4), "int4 is an A operand");

    // X reaches wgmma through registers, to be transposed or unpacked.
    static constexpr bool x_regs = x_mn || x_i4;
    static_assert(!x_regs || (slabs == 1 && C::products == 1), "registers for one slab of X");

    static constexpr int x_row_bytes = x_i4 ? kGroup / 2 : kGroup;            // K-major stage
    static constexpr int x_line_bytes = x_i4 ? tile_x / 2 : tile_x < 128 ? tile_x : 128; // MN-major stage: one k of one box
    static constexpr int x_swizzle = x_mn ? x_line_bytes : x_row_bytes;       // bytes: 32, 64 or 128
    static constexpr int x_bytes = tile_x * x_row_bytes;
    static constexpr int y_bytes = tile_y * kGroup;
    // Y as stored, where it is converted: lines of k (K-major) or of rows. The copy engine takes 16 bytes at least.
    static constexpr bool y_raw = y_fill == Fill::convert;
    static constexpr int y_line_bytes = !y_mn ? kGroup / 2 : y_i4 ? (tile_y < 32 ? 16 : tile_y / 2) : tile_y;
    static constexpr int y_lines = y_mn ? kGroup : tile_y;
    static constexpr int raw_bytes = y_raw ? y_line_bytes * y_lines : 0;
    static_assert(!y_raw || y_line_bytes <= 256, "no such conversion");
    static constexpr int scale_bytes = (C::tile_m * 4 + 127) / 128 * 128;
    static constexpr int out_bytes = bytes_of(C::out), aq_bytes = bytes_of(C::aq);
    static constexpr int staging_bytes = 64 * chunk * out_bytes;              // one consumer warpgroup's part of C
    static constexpr int barrier_bytes = 512;

    static constexpr int budget = C::blocks_per_sm == 1 ? kSmemMax : kSmemSm / C::blocks_per_sm - 1024;
    // Where k is split, what a warpgroup receives from its twin in the other block: float32.
    static_assert(C::parts == 1 || C::parts == 2, "two blocks may share a tile's k");
    static constexpr int part_fours = slabs * chunks * chunk / 8; // of a thread
    static constexpr int part_bytes = C::parts == 2 ? 128 * part_fours * 16 : 0;
    static constexpr int fixed_bytes = consumers * staging_bytes + part_bytes + barrier_bytes;
    static constexpr int stage_bytes = x_bytes + y_bytes + raw_bytes + scale_bytes;
    static constexpr int fit = (budget - fixed_bytes) / stage_bytes;
    static constexpr int stages = fit > 16 ? 16 : fit;
    static_assert(stages >= 2, "tile too large for shared memory");

    // Offsets into dynamic shared memory, which starts on a 1024-byte boundary.
    static constexpr int at_x = 0;
    static constexpr int at_y = at_x + stages * x_bytes;
    static constexpr int at_raw = at_y + stages * y_bytes;
    static constexpr int at_staging = at_raw + stages * raw_bytes;
    static constexpr int at_scale = at_staging + consumers * staging_bytes;
    static constexpr int at_parts = at_scale + stages * scale_bytes;
    static constexpr int at_barriers = at_parts + part_bytes;
    static constexpr int smem_bytes = at_barriers + barrier_bytes;
    static_assert(x_bytes % 1024 == 0 && y_bytes % 1024 == 0 && at_staging % 1024 == 0 && staging_bytes % 1024 == 0,
                  "swizzled tiles start on 1024-byte boundaries");

    // Registers a thread after the producers hand theirs over. The warpgroups share what the block starts with; asking
    // for more waits forever.
    static constexpr int first_regs = kRegisters / C::blocks_per_sm / (1 + consumers) / 8 * 8;
    static constexpr bool big = slabs * (tile_y + chunk * (C::products - 1)) > 128;
    static constexpr bool fills = x_fill != Fill::tma || y_fill != Fill::tma;
    static constexpr int producer_regs = first_regs < 88 || consumers == 1 ? (first_regs > 64 ? 64 : first_regs) : !big ? 88 : 56;
    static constexpr int most_regs = ((1 + consumers) * first_regs - producer_regs) / consumers / 8 * 8;
    static constexpr int consumer_regs = most_regs > 240 ? 240 : most_regs;
    static constexpr bool hands_over = consumer_regs > first_regs;
};

} // namespace gemmill
