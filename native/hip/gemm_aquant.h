/* C[M,N] = sum over groups g of AQ[m,g] * sum over k in g of A[m,k] * B[k,n]: the kernel.
 *
 * `Config` describes one kernel in constants; a template writes it, and then
 *
 *     GEMMILL_KERNEL(name, GemmAquant<Config>, GemmArgs)
 *
 * A block computes one tile of C. Its waves share the A and B tiles in LDS; a wave multiplies its part of them a
 * group at a time, and adds the product to its accumulators times the group's scales. */
#ifndef GEMMILL_HIP_GEMM_AQUANT_H
#define GEMMILL_HIP_GEMM_AQUANT_H

#include "args.h"
#include "device.h"
#include "mfma.h"
#include "stage.h"
#include "tile.h"

template <class Config>
struct Shape : Config {
    static constexpr int THREADS = WAVE * Config::WARPS_M * Config::WARPS_N;
};

template <class Config>
struct GemmAquant : Shape<Config> {
    using S = Shape<Config>;
    using S::ARCH, S::THREADS, S::TILE_M, S::TILE_N, S::TILE_K, S::WARPS_M, S::WARPS_N, S::B_KIND;

    static constexpr int GROUPS = TILE_K / GROUP_K;
    static constexpr int REPEAT_M = TILE_M / WARPS_M / 16;  // warp tiles of one wave
    static constexpr int REPEAT_N = TILE_N / WARPS_N / 16;
    static_assert(TILE_M == REPEAT_M * WARPS_M * 16 && TILE_N == REPEAT_N * WARPS_N * 16, "waves tile the block");
    static_assert(TILE_K == GROUPS * GROUP_K, "a tile is whole groups");

    using AStage = OperandStage<S, S::A_KIND, TILE_M, !S::A_COL>;
    using BStage = OperandStage<S, S::B_KIND, TILE_N, S::B_COL>;
    using AQStage = ScaleStage<S>;
    using ATile = typename AStage::OperandTile;
    using BTile = typename BStage::OperandTile;

    /* LDS: one or two buffers of (A, B, AQ). The result passes through the same memory. */
    static constexpr int B_OFFSET = ATile::BYTES;
    static constexpr int AQ_OFFSET = B_OFFSET + BTile::BYTES;
    static constexpr int BUFFER_BYTES = AQ_OFFSET + AQStage::BYTES;
    static constexpr int LDS_LIMIT = ARCH == Arch::gfx950 ? 160 * 1024 : 64 * 1024;
    // gfx90a's bf16 tiles are twice as large: where two don't fit, compv3 runs as mem does.
    static constexpr int BUFFERS = S::PIPELINE == Pipeline::compv3 && 2 * BUFFER_BYTES <= LDS_LIMIT ? 2 : 1;

    static constexpr int C_BYTES = bits_of(S::C_KIND) / 8;
    static constexpr int SLAB_ROWS = 16 * WARPS_M;                 // the epilogue takes one warp tile a wave at a time
    static constexpr int SLAB_STRIDE = TILE_N * C_BYTES + CHUNK;  // bytes; the pad shifts rows by four banks
    static constexpr int SLAB_BYTES = SLAB_ROWS * SLAB_STRIDE;

    static constexpr int LDS_BYTES = BUFFERS * BUFFER_BYTES > SLAB_BYTES ? BUFFERS * BUFFER_BYTES : SLAB_BYTES;
    static_assert(LDS_BYTES <= LDS_LIMIT, "the tile does not fit in LDS");
    using Memory = Lds<LDS_BYTES>;

    struct Stages {
        AStage a;
        BStage b;
        AQStage aq;

        Stages(const GemmArgs& args, i64 m0, i64 n0)
            : a({args.a, args.lda, m0, args.m, args.k}),
              b({args.b, args.ldb, n0, args.n, args.k}),
              aq({args.aq, args.ldaq, m0, args.m, (args.k + GROUP_K - 1) / GROUP_K}) {}

        void fetch(i64 tile) {
            a.fetch(tile * TILE_K);
            b.fetch(tile * TILE_K);
            aq.fetch(tile);
        }
        void commit(i64 tile, u32 buffer) const {
            a.template commit<Memory>(buffer, tile * TILE_K);
            b.template commit<Memory>(buffer + B_OFFSET, tile * TILE_K);
            aq.template commit<Memory>(buffer + AQ_OFFSET);
        }
    };

    struct Accumulators {
        f32x4 tile[REPEAT_M][REPEAT_N];
    };

    static void run(const GemmArgs& args) {
        const i64 m0 = (i64)block_x() * TILE_M;
#pragma nounroll
        for (i64 n0 = (i64)block_y() * TILE_N; n0 < args.n; n0 += (i64)GEMMILL_MAX_GRID_Y * TILE_N) {
            Accumulators acc = {};
            Stages stages(args, m0, n0);
            const i64 tiles = (args.k + TILE_K - 1) / TILE_K;
            if constexpr (BUFFERS == 2) double_buffered(stages, tiles, acc);
            else single_buffered(stages, tiles, acc);
            store(args, m0, n0, acc);
        }
    }

   private:
    // Loads of the next tile are in flight during the product; other blocks hide what is left.
    static void single_buffered(Stages& stages, i64 tiles, Accumulators& acc) {
        if (tiles > 0) stages.fetch(0);
#pragma nounroll
        for (i64 tile = 0; tile < tiles; ++tile) {
            stages.commit(tile, 0);
            barrier();  // the tile is whole
            if (tile + 1 < tiles) stages.fetch(tile + 1);
            multiply(0, acc);
            barrier();  // the tile has been read: the next may take its place
        }
    }

    // The next tile goes to the other buffer while this one is multiplied: one barrier a tile. The first two
    // turns only fill the pipeline.
    static void double_buffered(Stages& stages, i64 tiles, Accumulators& acc) {
        u32 buffer = 0;
#pragma nounroll
        for (i64 tile = -2; tile < tiles; ++tile) {
            const u32 other = BUFFER_BYTES - buffer;
            if (tile >= -1 && tile + 1 < tiles) stages.commit(tile + 1, other);
            if (tile + 2 < tiles) stages.fetch(tile + 2);
            if (tile >= 0) multiply(buffer, acc);
            barrier();  // the next tile is whole, and this one has been read
            buffer = other;
        }
    }

    static u32 lane() { return thread_index() % WAVE; }
    static u32 wave_m() { return thread_index() / WAVE / WARPS_N * (16 * REPEAT_M); }
    static u32 wave_n() { return thread_index() / WAVE % WARPS_N * (16 * REPEAT_N); }

    template <class OperandTile>
    static Fragment<ARCH> load_fragment(u32 lds, u32 row, int group) {
        Fragment<ARCH> fragment;
        GEMMILL_UNROLL
        for (int i = 0; i < Fragment<ARCH>::CHUNKS; ++i) {
            const u32 byte = group * GROUP_K * operand_bytes(ARCH) + (i * 4 + lane() / 16) * CHUNK;
            fragment.chunk[i] = Memory::template load<u32x4>(lds + OperandTile::offset(row, byte));
        }
        return fragment;
    }

    // B comes first, so that a lane's four results are neighbours in N, and share one row and one scale.
    static void multiply(u32 buffer, Accumulators& acc) {
        GEMMILL_UNROLL
        for (int group = 0; group < GROUPS; ++group) {
            Fragment<ARCH> b[REPEAT_N];
            GEMMILL_UNROLL
            for (int j = 0; j < REPEAT_N; ++j)
                b[j] = load_fragment<BTile>(buffer + B_OFFSET, wave_n() + 16 * j + lane() % 16, group);
            GEMMILL_UNROLL
            for (int i = 0; i < REPEAT_M; ++i) {
                const u32 row = wave_m() + 16 * i + lane() % 16;
                const Fragment<ARCH> a = load_fragment<ATile>(buffer, row, group);
                const float scale = Memory::template load<float>(buffer + AQ_OFFSET + 4 * (group * TILE_M + row));
                GEMMILL_UNROLL
                for (int j = 0; j < REPEAT_N; ++j)
                    acc.tile[i][j] += scale * group_mfma<ARCH, B_KIND, S::WARP_TILE_K>(b[j], a);
            }
        }
    }

    /* ---- Epilogue: through LDS, so that a row of C leaves in 16-byte pieces ---- */

    static void put(u32 offset, f32x4 x) {
        if constexpr (S::C_KIND == Kind::f32)
            Memory::template store<u32x4>(offset, bit_cast<u32x4>(x));
        else
            Memory::template store<u32x2>(offset, u32x2{pack(x[0], x[1]), pack(x[2], x[3])});
    }
    static u32 pack(float low, float high) {
        if constexpr (S::C_KIND == Kind::f16) return to_f16(low) | (u32)to_f16(high) << 16;
        else return to_bf16(low) | (u32)to_bf16(high) << 16;
    }

    static void store(const GemmArgs& args, i64 m0, i64 n0, const Accumulators& acc) {
        constexpr int ELEMENTS = CHUNK / C_BYTES;
        constexpr int ROW_CHUNKS = TILE_N / ELEMENTS;
        GEMMILL_UNROLL
        for (int i = 0; i < REPEAT_M; ++i) {
            const u32 slab_row = wave_m() / REPEAT_M + lane() % 16;
            GEMMILL_UNROLL
            for (int j = 0; j < REPEAT_N; ++j)
                put(slab_row * SLAB_STRIDE + (wave_n() + 16 * j + lane() / 16 * 4) * C_BYTES, acc.tile[i][j]);
            barrier();  // the slab is whole
            for (u32 c = thread_index(); c < SLAB_ROWS * ROW_CHUNKS; c += THREADS) {
                const u32 row = c / ROW_CHUNKS;
                const u32 column = c % ROW_CHUNKS * ELEMENTS;
                const u32x4 chunk = Memory::template load<u32x4>(row * SLAB_STRIDE + column * C_BYTES);
                const i64 m = m0 + row / 16 * (16 * REPEAT_M) + 16 * i + row % 16;
                if (m < args.m) store_chunk(args, m, n0 + column, chunk);
            }
            barrier();  // the slab has been read
        }
    }

    static void store_chunk(const GemmArgs& args, i64 m, i64 n, u32x4 chunk) {
        constexpr int ELEMENTS = CHUNK / C_BYTES;
        u8* const out = (u8*)args.c + (m * args.ldc + n) * C_BYTES;
        if (n + ELEMENTS <= args.n) return global_store<u32x4>(out, chunk);
        GEMMILL_UNROLL
        for (int j = 0; j < ELEMENTS; ++j) {
            if (n + j >= args.n) continue;
            if constexpr (C_BYTES == 4) global_store<u32>(out + 4 * j, chunk[j]);
            else global_store<u16>(out + 2 * j, (u16)(chunk[j / 2] >> j % 2 * 16));
        }
    }
};

#endif /* GEMMILL_HIP_GEMM_AQUANT_H */
