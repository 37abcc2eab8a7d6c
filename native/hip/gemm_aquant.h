/* C[M,N] = sum over groups g of AQ[m,g] * sum over k in g of A[m,k] * B[k,n]: the kernel.
 *
 * `Config` describes one kernel in constants; a template writes it, and then
 *
 *     GEMMILL_KERNEL(name, GemmAquant<Config>, GemmArgs)
 *
 * A block computes one tile of C. Its waves share the A and B tiles in LDS; a wave multiplies its part of them a
 * group at a time, and adds the product to its accumulators times the group's scales. */
#pragma once

#include "hip/args.h"
#include "hip/device.h"
#include "hip/mfma.h"
#include "hip/stage.h"
#include "hip/tile.h"

namespace gemmill::hip {

template <class Config>
struct Shape : Config {
    static constexpr int kThreads = kWave * Config::kWarpsM * Config::kWarpsN;
};

template <class Config>
struct GemmAquant : Shape<Config> {
    using S = Shape<Config>;
    using S::kArch, S::kThreads, S::kTileM, S::kTileN, S::kTileK, S::kWarpsM, S::kWarpsN, S::kKindB;

    static constexpr int kGroups = kTileK / kGroupK;
    static constexpr int kRepeatM = kTileM / kWarpsM / 16;  // warp tiles of one wave
    static constexpr int kRepeatN = kTileN / kWarpsN / 16;
    static_assert(kTileM == kRepeatM * kWarpsM * 16 && kTileN == kRepeatN * kWarpsN * 16, "waves tile the block");
    static_assert(kTileK == kGroups * kGroupK, "a tile is whole groups");

    using AStage = OperandStage<S, S::kKindA, kTileM, !S::kColumnA>;
    using BStage = OperandStage<S, S::kKindB, kTileN, S::kColumnB>;
    using AQStage = ScaleStage<S>;
    using ATile = typename AStage::OperandTile;
    using BTile = typename BStage::OperandTile;

    /* LDS: one or two buffers of (A, B, AQ). The result passes through the same memory. */
    static constexpr int kOffsetB = ATile::kBytes;
    static constexpr int kOffsetScale = kOffsetB + BTile::kBytes;
    static constexpr int kBufferBytes = kOffsetScale + AQStage::kBytes;
    static constexpr int kLdsLimit = kArch == Arch::gfx950 ? 160 * 1024 : 64 * 1024;
    // gfx90a's bf16 tiles are twice as large: where two don't fit, compv3 runs as mem does.
    static constexpr int kBuffers = S::kPipeline == Pipeline::compv3 && 2 * kBufferBytes <= kLdsLimit ? 2 : 1;

    static constexpr int kBytesC = bits_of(S::kKindC) / 8;
    static constexpr int kSlabRows = 16 * kWarpsM;                 // the epilogue takes one warp tile a wave at a time
    static constexpr int kSlabStride = kTileN * kBytesC + kChunk;  // bytes; the pad shifts rows by four banks
    static constexpr int kSlabBytes = kSlabRows * kSlabStride;

    static constexpr int kLdsBytes = kBuffers * kBufferBytes > kSlabBytes ? kBuffers * kBufferBytes : kSlabBytes;
    static_assert(kLdsBytes <= kLdsLimit, "the tile does not fit in LDS");
    using Memory = Lds<kLdsBytes>;

    struct Stages {
        AStage a;
        BStage b;
        AQStage aq;

        Stages(const GemmArgs& args, int m0, int n0)
            : a({args.a, args.lda, m0, args.m, args.k}),
              b({args.b, args.ldb, n0, args.n, args.k}),
              aq({args.aq, args.ldaq, m0, args.m, ceil_div(args.k, kGroupK)}) {}

        int regular_tiles() const {
            const int of_a = a.regular_tiles(), of_b = b.regular_tiles();
            return of_a < of_b ? of_a : of_b;
        }
        void fetch(int tile) {
            a.fetch(tile * kTileK);
            b.fetch(tile * kTileK);
            aq.fetch(tile);
        }
        void commit(int tile, u32 buffer) {
            a.template commit<Memory>(buffer, tile * kTileK);
            b.template commit<Memory>(buffer + kOffsetB, tile * kTileK);
            aq.template commit<Memory>(buffer + kOffsetScale, tile);
        }
        // Both steps at once, for any tile.
        void fill(int tile) {
            aq.fetch(tile);
            fill_edge<Memory, S, S::kKindA, kTileM, !S::kColumnA>(0, a.x, tile * kTileK);
            fill_edge<Memory, S, kKindB, kTileN, S::kColumnB>(kOffsetB, b.x, tile * kTileK);
            aq.template commit<Memory>(kOffsetScale, tile);
        }
    };

    struct Accumulators {
        f32x4 tile[kRepeatM][kRepeatN];
    };

    static void run(const GemmArgs& args) {
        const int m0 = (int)block_x() * kTileM;
#pragma nounroll
        for (int n0 = (int)block_y() * kTileN; n0 < args.n; n0 += (int)kMaxGridY * kTileN) {
            Accumulators acc = {};
            Stages stages(args, m0, n0);
            const int regular = stages.regular_tiles();  // edge tiles come last
            if constexpr (kBuffers == 2) double_buffered(stages, regular, acc);
            else single_buffered(stages, regular, acc);
            const GemmArgs& again = reload(args);
            Stages edge(again, m0, n0);
#pragma nounroll
            for (int tile = regular; tile < ceil_div(again.k, kTileK); ++tile) {
                edge.fill(tile);
                barrier();  // the tile is whole
                multiply(0, acc);
                barrier();  // the tile has been read
            }
            store(again, m0, n0, acc);
        }
    }

   private:
    // Loads of the next tile are in flight during the product; other blocks hide what is left.
    static void single_buffered(Stages& stages, int tiles, Accumulators& acc) {
        if (tiles > 0) stages.fetch(0);
#pragma nounroll
        for (int tile = 0; tile < tiles; ++tile) {
            stages.commit(tile, 0);
            barrier();  // the tile is whole
            if (tile + 1 < tiles) stages.fetch(tile + 1);
            multiply(0, acc);
            barrier();  // the tile has been read: the next may take its place
        }
    }

    // The next tile goes to the other buffer while this one is multiplied: one barrier a tile. The first two
    // turns only fill the pipeline.
    static void double_buffered(Stages& stages, int tiles, Accumulators& acc) {
        u32 buffer = 0;
#pragma nounroll
        for (int tile = -2; tile < tiles; ++tile) {
            const u32 other = kBufferBytes - buffer;
            if (tile >= -1 && tile + 1 < tiles) stages.commit(tile + 1, other);
            if (tile + 2 < tiles) stages.fetch(tile + 2);
            if (tile >= 0) multiply(buffer, acc);
            barrier();  // the next tile is whole, and this one has been read
            buffer = other;
        }
    }

    static u32 lane() { return thread_index() % kWave; }
    static u32 wave_m() { return thread_index() / kWave / kWarpsN * (16 * kRepeatM); }
    static u32 wave_n() { return thread_index() / kWave % kWarpsN * (16 * kRepeatN); }

    template <class OperandTile>
    static Fragment<kArch> load_fragment(u32 lds, u32 row, int group) {
        Fragment<kArch> fragment;
        GEMMILL_UNROLL
        for (int i = 0; i < Fragment<kArch>::kChunks; ++i) {
            const u32 byte = group * kGroupK * operand_bytes(kArch) + (i * 4 + lane() / 16) * kChunk;
            fragment.chunk[i] = Memory::template load<u32x4>(lds + OperandTile::offset(row, byte));
        }
        return fragment;
    }

    // B comes first, so that a lane's four results are neighbours in N, and share one row and one scale.
    static void multiply(u32 buffer, Accumulators& acc) {
        GEMMILL_UNROLL
        for (int group = 0; group < kGroups; ++group) {
            Fragment<kArch> b[kRepeatN];
            GEMMILL_UNROLL
            for (int j = 0; j < kRepeatN; ++j)
                b[j] = load_fragment<BTile>(buffer + kOffsetB, wave_n() + 16 * j + lane() % 16, group);
            GEMMILL_UNROLL
            for (int i = 0; i < kRepeatM; ++i) {
                const u32 row = wave_m() + 16 * i + lane() % 16;
                const Fragment<kArch> a = load_fragment<ATile>(buffer, row, group);
                const float scale = Memory::template load<float>(buffer + kOffsetScale + 4 * (group * kTileM + row));
                GEMMILL_UNROLL
                for (int j = 0; j < kRepeatN; ++j)
                    acc.tile[i][j] += scale * group_mfma<kArch, kKindB, S::kWarpTileK>(b[j], a);
            }
        }
    }

    /* ---- Epilogue: through LDS, so that a row of C leaves in 16-byte pieces ---- */

    static void put(u32 offset, f32x4 x) {
        if constexpr (S::kKindC == Kind::f32)
            Memory::template store<u32x4>(offset, bit_cast<u32x4>(x));
        else
            Memory::template store<u32x2>(offset, u32x2{pack(x[0], x[1]), pack(x[2], x[3])});
    }
    static u32 pack(float low, float high) {
        if constexpr (S::kKindC == Kind::f16) return to_f16(low) | (u32)to_f16(high) << 16;
        else return to_bf16(low) | (u32)to_bf16(high) << 16;
    }

    static void store(const GemmArgs& args, int m0, int n0, const Accumulators& acc) {
        constexpr int kElements = kChunk / kBytesC;
        constexpr int kRowChunks = kTileN / kElements;
        GEMMILL_UNROLL
        for (int i = 0; i < kRepeatM; ++i) {
            const u32 slab_row = wave_m() / kRepeatM + lane() % 16;
            GEMMILL_UNROLL
            for (int j = 0; j < kRepeatN; ++j)
                put(slab_row * kSlabStride + (wave_n() + 16 * j + lane() / 16 * 4) * kBytesC, acc.tile[i][j]);
            barrier();  // the slab is whole
            for (u32 c = thread_index(); c < kSlabRows * kRowChunks; c += kThreads) {
                const u32 row = c / kRowChunks;
                const u32 column = c % kRowChunks * kElements;
                const u32x4 chunk = Memory::template load<u32x4>(row * kSlabStride + column * kBytesC);
                const int m = m0 + row / 16 * (16 * kRepeatM) + 16 * i + row % 16;
                if (m < args.m) store_chunk(args, m, n0 + column, chunk);
            }
            barrier();  // the slab has been read
        }
    }

    static void store_chunk(const GemmArgs& args, int m, int n, u32x4 chunk) {
        constexpr int kElements = kChunk / kBytesC;
        u8* const out = (u8*)args.c + (m * args.ldc + n) * kBytesC;  // 64 bits, as ldc
        if (n + kElements <= args.n) return global_store<u32x4>(out, chunk);
        // The last columns, one by one; shifting them down spares an index into registers.
#pragma nounroll
        for (int j = 0; n + j < args.n; ++j) {
            if constexpr (kBytesC == 4) {
                global_store<u32>(out + 4 * j, chunk[0]);
                chunk = u32x4{chunk[1], chunk[2], chunk[3], 0};
            } else {
                global_store<u16>(out + 2 * j, (u16)chunk[0]);
                chunk = chunk >> 16 | u32x4{chunk[1], chunk[2], chunk[3], 0} << 16;
            }
        }
    }
};

}  // namespace gemmill::hip
