// The kernel: C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n].
//
// One producer warpgroup and one or two consumer warpgroups share a ring of stages, each 128 k (one scale group) deep:
//   warp 0     starts the copy engine's loads of X and Y
//   warp 1     gathers the tile's scales, several groups at once
//   warps 2-3  convert Y, or fill what the copy engine can't take (fill.cuh); idle otherwise
//   consumers  per stage: wgmma from zero, then acc += scale * product in float32, because wgmma keeps fewer
//              bits than float32 when it accumulates 8-bit products over a long k
// A full barrier counts those who fill a stage, an empty barrier the consumer warps that have read it.
//
// Where tiles are few, the two blocks of a cluster share a tile's k and add their sums through shared memory.
#pragma once
#include <cuda_fp8.h>

#include "fill.cuh"
#include "fragment.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

namespace gemmill {

template <class C>
struct Gemm {
    using T = Traits<C>;

    const Params& p;
    const TensorMap* map_x;
    const TensorMap* map_y;
    const TensorMap* map_c;
    uint32_t smem;
    int part, parts; // of a tile's k: the cluster's blocks share it
    int first_k, last_k; // stages of k this block sums

    struct Tile {
        int x, y; // in tiles
    };
    // Position in the ring.
    struct Stage {
        int index = 0;
        uint32_t phase = 0;
        __device__ __forceinline__ void next() {
            if (++index == T::stages) {
                index = 0;
                phase ^= 1;
            }
        }
    };

    __device__ __forceinline__ uint32_t full(int s) const { return smem + T::at_barriers + s * 8; }
    __device__ __forceinline__ uint32_t empty(int s) const { return smem + T::at_barriers + (T::stages + s) * 8; }
    __device__ __forceinline__ uint32_t raw_full(int s) const { return smem + T::at_barriers + (2 * T::stages + s) * 8; }
    __device__ __forceinline__ uint32_t raw_stage(int s) const { return smem + T::at_raw + s * T::raw_bytes; }
    __device__ __forceinline__ uint32_t x_stage(int s) const { return smem + T::at_x + s * T::x_bytes; }
    __device__ __forceinline__ uint32_t y_stage(int s) const { return smem + T::at_y + s * T::y_bytes; }
    __device__ __forceinline__ uint32_t scale_stage(int s) const { return smem + T::at_scale + s * T::scale_bytes; }

    // Tiles in an order that keeps the concurrently running ones within a square of C: A and B then come from L2.
    __device__ __forceinline__ Tile tile_at(int t) const {
        constexpr int band = 16;
        const int in_band = band * p.tiles_y;
        const int first = t / in_band * band, r = t % in_band;
        const int height = min(p.tiles_x - first, band);
        return {first + r % height, r / height};
    }
    template <class F>
    __device__ __forceinline__ void each_tile(F f) const {
        const int step = gridDim.x / parts;
        for (int t = blockIdx.x / parts; t < p.tiles_x * p.tiles_y; t += step) f(tile_at(t));
    }

    // ---- producers ----

    // Operands into L2 while the grid in front still runs: of B the tile's first stages, of A and AQ this block's share.
    // Whatever that grid writes passes through L2, so nothing stale is read later.
    __device__ __forceinline__ void fetch_early(int thread) const {
        if (C::scalar || p.early.stages == 0) return;
        const uint8_t *a = C::swap ? p.y : p.x, *b = C::swap ? p.x : p.y;
        const int64_t lda = C::swap ? p.ldy : p.ldx, ldb = C::swap ? p.ldx : p.ldy;
        const Tile tile = tile_at(blockIdx.x / parts);
        const int n0 = (C::swap ? tile.x : tile.y) * C::tile_n, k0 = first_k * kGroup;
        const int stages = min(p.early.stages, last_k - first_k);
        if constexpr (C::b_col) {
            for (int i = thread; i < min(C::tile_n, p.n - n0) * stages; i += T::threads)
                fetch_global(b + (n0 + i / stages) * ldb + k0 + i % stages * kGroup);
        } else {
            for (int k = k0 + thread; k < min(k0 + stages * kGroup, p.k); k += T::threads) fetch_global(b + k * ldb + n0);
        }
        const int share = blockIdx.x * T::threads + thread;
        if (share < p.early.a_lines) {
            const int row = share / p.early.a_per_row, line = share % p.early.a_per_row;
            fetch_global(a + row * lda / (C::a == Elem::i4 ? 2 : 1) + line * 128);
        }
        if (share < p.early.aq_lines) {
            const int row = share / p.early.aq_per_row, line = share % p.early.aq_per_row;
            fetch_global(static_cast<const uint8_t*>(p.aq) + row * p.ldaq * T::aq_bytes + line * 128);
        }
    }

    __device__ __forceinline__ void load_tiles() const {
        Stage s;
        each_tile([&](Tile tile) {
            for (int kb = first_k; kb < last_k; ++kb) {
                barrier_wait(empty(s.index), s.phase ^ 1);
                const uint32_t bar = full(s.index);
                constexpr bool tma_x = T::x_fill == Fill::tma, tma_y = T::y_fill == Fill::tma;
                barrier_arrive_expect(bar, (tma_x ? T::x_bytes : 0) + (tma_y ? T::y_bytes : 0));
                if constexpr (tma_x) load_x(x_stage(s.index), bar, tile.x * T::tile_x, kb * kGroup);
                if constexpr (tma_y) tma_load(y_stage(s.index), map_y, bar, kb * kGroup, tile.y * T::tile_y);
                if constexpr (T::y_raw) load_raw(s.index, tile.y * T::tile_y, kb * kGroup);
                s.next();
            }
        });
    }
    __device__ __forceinline__ void load_x(uint32_t dst, uint32_t bar, int row, int k) const {
        constexpr int per_byte = T::x_i4 ? 2 : 1;
        if constexpr (T::x_mn) {
#pragma unroll
            for (int box = 0; box < T::x_bytes / (T::x_line_bytes * kGroup); ++box)
                tma_load(dst + box * T::x_line_bytes * kGroup, map_x, bar, row / per_byte + box * T::x_line_bytes, k);
        } else {
            tma_load(dst, map_x, bar, k / per_byte, row);
        }
    }
    __device__ __forceinline__ void load_raw(int stage, int row, int k) const {
        constexpr int per_byte = T::y_i4 ? 2 : 1;
        barrier_arrive_expect(raw_full(stage), T::raw_bytes);
        const int inner = (T::y_mn ? row : k) / per_byte / 16 * 16; // see transpose_unpack_y()
        tma_load(raw_stage(stage), map_y, raw_full(stage), inner, T::y_mn ? k : row);
    }

    // Scales of consecutive groups of a lane's rows, which are 32 apart, as they lie in memory: bytes are four in a word.
    // All are under way before the first is used.
    struct ScaleBatch {
        static constexpr bool bytes = C::aq != Elem::f32;
        static constexpr int rows = (C::tile_m + 31) / 32;
        static constexpr int groups = T::producer_regs <= 48 || (T::big && (C::preshuffle || C::aq_col)) ? 2 : 4;
        static constexpr int words = bytes ? 1 : groups; // of a row
        uint32_t word[rows][words];

        __device__ __forceinline__ float operator()(int row, int group) const {
            if constexpr (!bytes) return __uint_as_float(word[row][group]);
            const __nv_fp8_storage_t byte = word[row][0] >> (8 * group) & 0xff;
            return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, C::aq == Elem::e4m3 ? __NV_E4M3 : __NV_E5M2)));
        }
    };
    __device__ __forceinline__ uint32_t scale_bits(int m, int g) const {
        if (m >= p.m || g >= last_k) return 0;
        const int64_t i = C::preshuffle ? g / C::preshuffle * p.ldaq + int64_t(m) * C::preshuffle + g % C::preshuffle
                          : C::aq_col   ? g * p.ldaq + m
                                        : m * p.ldaq + g;
        if constexpr (C::aq == Elem::f32) return load_global(static_cast<const uint32_t*>(p.aq) + i);
        return load_global(static_cast<const uint8_t*>(p.aq) + i);
    }
    // From row m and group g on. Where a row's groups lie side by side they are loaded together: loads of single scales, a
    // row a lane, would take a quarter of the level-1 bandwidth that wgmma needs.
    __device__ __forceinline__ void load(ScaleBatch& v, int m, int g) const {
        constexpr int groups = ScaleBatch::groups, size = groups * T::aq_bytes;
        if (!C::preshuffle && !C::aq_col && p.vector_aq && g % groups == 0 && g + groups <= last_k) {
#pragma unroll
            for (int i = 0; i < ScaleBatch::rows; ++i) {
                uint32_t(&to)[ScaleBatch::words] = v.word[i];
#pragma unroll
                for (int w = 0; w < ScaleBatch::words; ++w) to[w] = 0;
                if (m + 32 * i < p.m) load_global<size>(to, static_cast<const uint8_t*>(p.aq) + ((m + 32 * i) * p.ldaq + g) * T::aq_bytes);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < ScaleBatch::rows; ++i) {
#pragma unroll
            for (int u = 0; u < groups; ++u) {
                const uint32_t bits = scale_bits(m + 32 * i, g + u);
                if constexpr (!ScaleBatch::bytes) {
                    v.word[i][u] = bits;
                } else {
                    v.word[i][0] = u ? v.word[i][0] | bits << (8 * u) : bits;
                }
            }
        }
    }
    __device__ __forceinline__ void load_scales(int lane) const {
        Stage s;
        each_tile([&](Tile tile) {
            const int m = (C::swap ? tile.y : tile.x) * C::tile_m + lane;
            constexpr int groups = ScaleBatch::groups;
            const auto store = [&](const ScaleBatch& v, int kb) {
#pragma unroll
                for (int u = 0; u < groups; ++u) {
                    if (kb + u >= last_k) break;
                    barrier_wait(empty(s.index), s.phase ^ 1);
#pragma unroll
                    for (int i = 0; i < ScaleBatch::rows; ++i)
                        if (lane + 32 * i < C::tile_m) store_shared(scale_stage(s.index) + (lane + 32 * i) * 4, v(i, u));
                    __syncwarp();
                    if (lane == 0) barrier_arrive(full(s.index));
                    s.next();
                }
            };
            if constexpr (C::preshuffle && C::products == 2) { // short batches, short stages: the next one comes meanwhile
                ScaleBatch even, odd;
                load(even, m, first_k);
                for (int kb = first_k; kb < last_k; kb += 2 * groups) {
                    load(odd, m, kb + groups);
                    store(even, kb);
                    load(even, m, kb + 2 * groups);
                    store(odd, kb + groups);
                }
            } else {
                for (int kb = first_k; kb < last_k; kb += groups) {
                    ScaleBatch v;
                    load(v, m, kb);
                    store(v, kb);
                }
            }
        });
    }

    __device__ __forceinline__ void fill_tiles(int thread) const {
        const Source<T::x_elem, T::x_mn> x{p.x, p.ldx, C::swap ? p.n : p.m, p.k};
        const Source<T::y_elem, T::y_mn> y{p.y, p.ldy, C::swap ? p.m : p.n, p.k};
        Stage s;
        each_tile([&](Tile tile) {
            for (int kb = first_k; kb < last_k; ++kb) {
                if constexpr (T::y_raw) {
                    barrier_wait(raw_full(s.index), s.phase);
                    convert_y<T>(y_stage(s.index), raw_stage(s.index), tile.y * T::tile_y, thread);
                } else {
                    barrier_wait(empty(s.index), s.phase ^ 1);
                    fill_x<T>(x_stage(s.index), x, tile.x * T::tile_x, kb * kGroup, thread);
                    fill_y_scalar<T>(y_stage(s.index), y, tile.y * T::tile_y, kb * kGroup, thread);
                }
                fence_async_proxy();
                __syncwarp();
                if (thread % 32 == 0) barrier_arrive(full(s.index));
                s.next();
            }
        });
    }

    // ---- consumers ----

    using Block = float[T::chunk / 2]; // a thread's part of 64 x chunk
    struct Sum {                       // and of what its warpgroup owns of a tile
        Block block[T::slabs][T::chunks];
        __device__ __forceinline__ auto& operator[](int slab) { return block[slab]; }
        __device__ __forceinline__ const auto& operator[](int slab) const { return block[slab]; }
    };

    // This warp has read the stage.
    __device__ __forceinline__ void release(int stage, int lane) const {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty(stage));
    }

    // The scales of a block over one stage: of its two rows, or of its columns where the operands are swapped.
    struct Scales {
        float v[C::swap ? T::chunk / 4 : 2];
    };
    __device__ __forceinline__ void load(Scales& scales, int stage, int row0, int chunk, const int (&row)[2], int q) const {
        if constexpr (C::swap) {
#pragma unroll
            for (int j = 0; j < T::chunk / 8; ++j) {
                const float2 f = load_shared_float2(scale_stage(stage) + (chunk * T::chunk + 8 * j + 2 * q) * 4);
                scales.v[2 * j] = f.x, scales.v[2 * j + 1] = f.y;
            }
        } else {
            scales.v[0] = load_shared_float(scale_stage(stage) + (row0 + row[0]) * 4);
            scales.v[1] = load_shared_float(scale_stage(stage) + (row0 + row[1]) * 4);
        }
    }

    // sum += scale * (X slab * Y chunk) over one stage. A thread's values are pairs of columns, of its first row and of
    // its second in turn; row by row, so that the scale stays in the operand cache: reads of registers are what wgmma
    // competes for.
    static __device__ __forceinline__ void promote(Block& sum, const Block& product, const Scales& scales) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < T::chunk / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    sum[4 * j + 2 * i + e] += scales.v[C::swap ? 2 * j + e : i] * product[4 * j + 2 * i + e];
    }

    using Fragments = uint32_t[4][4]; // a slab of X over one stage

    __device__ __forceinline__ void load_fragments(Fragments& a, int stage, int row0, int warp, int lane) const {
        if constexpr (T::x_regs) {
#pragma unroll
            for (int step = 0; step < 4; ++step) load_fragment<T>(a[step], x_stage(stage), row0, warp, lane, step);
        }
    }

    // A warpgroup's rows of X, and Y, in the ring's first stage.
    struct Operands {
        Descriptor x, y;
    };
    __device__ __forceinline__ Operands operands(int group) const {
        return {describe(x_stage(0) + group * T::slabs * 64 * kGroup), describe(y_stage(0))};
    }

    // Begin a product; X from fragments or from shared memory.
    __device__ __forceinline__ void multiply(Block& d, const Operands& o, const Fragments& a, int stage, int slab, int chunk) const {
        constexpr Elem xe = T::x_i4 ? Elem::e4m3 : T::x_elem, ye = T::y_i4 ? Elem::e4m3 : T::y_elem;
        using Mma = Wgmma<T::chunk, xe, ye>;
        const Descriptor x = o.x + stage * T::x_bytes + slab * 64 * kGroup, y = o.y + stage * T::y_bytes + chunk * T::chunk * kGroup;
        pin(d);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            if constexpr (T::x_regs) {
                Mma::run(d, a[step], y + step * 32, step > 0);
            } else {
                Mma::run(d, x + step * 32, y + step * 32, step > 0);
            }
        }
        wgmma_commit();
    }

    // One product at a time: what a product leaves idle, the other warpgroup's fills.
    __device__ __forceinline__ void sum_tile(Sum& sum, Stage& s, const Operands& o, int group, int warp, int lane,
                                             const int (&row)[2]) const {
        for (int kb = first_k; kb < last_k; ++kb) {
            barrier_wait(full(s.index), s.phase);
#pragma unroll
            for (int slab = 0; slab < T::slabs; ++slab) {
                const int row0 = (group * T::slabs + slab) * 64;
                Fragments a;
                load_fragments(a, s.index, row0, warp, lane);
#pragma unroll
                for (int chunk = 0; chunk < T::chunks; ++chunk) {
                    Block d;
                    multiply(d, o, a, s.index, slab, chunk);
                    Scales scales;
                    load(scales, s.index, row0, chunk, row, lane % 4);
                    // Threads read X, the copy engine writes it next: barriers alone do not order accesses of two proxies.
                    if (T::x_regs && T::x_fill == Fill::tma && chunk == 0) fence_async_proxy();
                    wgmma_wait<0>();
                    pin(d);
                    if (slab == T::slabs - 1 && chunk == T::chunks - 1) release(s.index, lane);
                    promote(sum[slab][chunk], d, scales);
                }
            }
            s.next();
        }
    }

    // Two products in turn: one is promoted while the tensor cores work on the next.
    __device__ __forceinline__ void sum_tile_in_turn(Block& sum, Stage& s, const Operands& o, int group, int lane,
                                                     const int (&row)[2]) const {
        struct Product {
            Block d;
            Scales scales;
            int stage;
        };
        Product even, odd;
        const int row0 = group * 64;
        const auto begin = [&](Product& p) {
            barrier_wait(full(s.index), s.phase);
            p.stage = s.index;
            const Fragments none = {};
            multiply(p.d, o, none, s.index, 0, 0);
            load(p.scales, s.index, row0, 0, row, lane % 4);
            s.next();
        };
        const auto end = [&](Product& p) {
            pin(p.d);
            release(p.stage, lane);
            promote(sum, p.d, p.scales);
        };
        if (first_k == last_k) return;
        begin(even);
        int kb = first_k + 1;
        for (; kb + 1 < last_k; kb += 2) {
            begin(odd);
            wgmma_wait<1>();
            end(even);
            begin(even);
            wgmma_wait<1>();
            end(odd);
        }
        if (kb < last_k) {
            begin(odd);
            wgmma_wait<1>();
            end(even);
            wgmma_wait<0>();
            end(odd);
        } else {
            wgmma_wait<0>();
            end(even);
        }
    }

    __device__ __forceinline__ void consume(int group, int warp, int lane) const {
        const int row[2] = {fragment_row<T::x_mn, T::x_i4>(warp, lane, 0), fragment_row<T::x_mn, T::x_i4>(warp, lane, 1)};
        const Operands o = operands(group);
        Stage s;
        each_tile([&](Tile tile) {
            Sum sum = {};
            if constexpr (C::products == 2) {
                sum_tile_in_turn(sum[0][0], s, o, group, lane, row);
            } else {
                sum_tile(sum, s, o, group, warp, lane, row);
            }
            finish(tile, sum, group, warp, opaque(lane));
        });
        if (warp == 0 && lane == 0) store_wait_read(); // before its shared memory goes
    }

    // A tile's sum over this block's k is complete.
    __device__ __forceinline__ void finish(Tile tile, Sum& sum, int group, int warp, int lane) const {
        if (C::parts > 1 && parts > 1) {
            const int thread = warp * 32 + lane;
            if (part != adder(group)) return send_part(sum, adder(group), thread);
            add_part(sum, thread);
        }
        write(tile, sum, group, warp, lane);
    }

    // ---- split k: the two blocks of a cluster add their sums, each those of one warpgroup where there are two. Of two
    // parts the order does not matter. ----

    static __device__ __forceinline__ int adder(int group) { return T::consumers == 2 ? group : 0; }
    // Four sums of a thread; thread t's meet thread t's.
    __device__ __forceinline__ uint32_t part_at(int four, int thread) const {
        return smem + T::at_parts + (four * 128 + thread) * 16;
    }
    __device__ __forceinline__ uint32_t part_ready() const { return smem + T::at_barriers + 3 * T::stages * 8; }

    __device__ __forceinline__ void send_part(const Sum& sum, int to, int thread) const {
        cluster_wait(); // the other block's barrier is ready
        const float* v = &sum[0][0][0];
#pragma unroll
        for (int i = 0; i < T::part_fours; ++i)
            store_remote(part_at(i, thread), part_ready(), to, make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
    }
    __device__ __forceinline__ void add_part(Sum& sum, int thread) const {
        barrier_wait_cluster(part_ready(), 0);
        float* v = &sum[0][0][0];
#pragma unroll
        for (int i = 0; i < T::part_fours; ++i) {
            const float4 f = load_shared_float4(part_at(i, thread));
            v[4 * i] += f.x, v[4 * i + 1] += f.y, v[4 * i + 2] += f.z, v[4 * i + 3] += f.w;
        }
    }

    // A warpgroup's part of C, a block at a time: staged in rows of 128 bytes as the copy engine takes them.
    __device__ __forceinline__ void write(Tile tile, const Sum& sum, int group, int warp,
                                          int lane) const {
        constexpr int height = C::swap ? T::chunk : 64, width = C::swap ? 64 : T::chunk;
        using S = Staging<height, width, T::out_bytes>;
        const S staging{smem + T::at_staging + group * T::staging_bytes};
        const bool first = warp == 0 && lane == 0;
#pragma unroll
        for (int slab = 0; slab < T::slabs; ++slab) {
#pragma unroll
            for (int chunk = 0; chunk < T::chunks; ++chunk) {
                if (first) store_wait_read();
                named_barrier(1 + group, 128); // the last block has left the staging area
                stage_block<C, T>(staging, sum[slab][chunk], warp, lane);
                if (p.store_c) fence_async_proxy();
                named_barrier(1 + group, 128);
                const int gx = tile.x * T::tile_x + (group * T::slabs + slab) * 64, gy = tile.y * T::tile_y + chunk * T::chunk;
                const int m0 = C::swap ? gy : gx, n0 = C::swap ? gx : gy;
                if (p.store_c) {
                    if (first) {
#pragma unroll
                        for (int box = 0; box < S::boxes; ++box)
                            tma_store(map_c, staging.base + box * S::box_bytes, (n0 + box * S::box_columns) * T::out_bytes, m0);
                        store_commit();
                    }
                    continue;
                }
#pragma unroll 1
                for (int i = warp * 32 + lane; i < height * width; i += 128) {
                    const int row = i / width, column = i % width;
                    if (m0 + row >= p.m || n0 + column >= p.n) continue;
                    static_cast<uint16_t*>(p.c)[(m0 + row) * p.ldc + n0 + column] = load_shared_2(staging.at(row, column));
                }
            }
        }
    }
};

template <class C>
__device__ __forceinline__ void gemm(const TensorMap& map_x, const TensorMap& map_y, const TensorMap& map_c,
                                     const Params& p) {
    using G = Gemm<C>;
    using T = Traits<C>;
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    const uint32_t smem = uniform(smem_address(dynamic_smem));
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int parts = C::parts > 1 ? cluster_size() : 1, part = C::parts > 1 ? cluster_rank() : 0;
    const G g{p, &map_x, &map_y, &map_c, smem, part, parts, int(int64_t(p.k_blocks) * part / parts),
              int(int64_t(p.k_blocks) * (part + 1) / parts)};

    if (threadIdx.x == 0) {
        if (smem % 1024) __trap();
        for (int s = 0; s < T::stages; ++s) {
            barrier_init(g.full(s), 2 + (T::fills ? 2 : 0));
            barrier_init(g.empty(s), 4 * T::consumers);
            if (T::y_raw) barrier_init(g.raw_full(s), 1);
        }
        if (parts > 1 && (T::consumers == 2 || part == 0)) {
            barrier_init(g.part_ready(), 1);
            barrier_arrive_expect(g.part_ready(), T::part_bytes);
        }
        barrier_init_fence();
        if (T::x_fill == Fill::tma) tma_prefetch(&map_x);
        if (T::y_fill != Fill::scalar) tma_prefetch(&map_y);
        if (p.store_c) tma_prefetch(&map_c);
    }
    g.fetch_early(threadIdx.x);
    __syncthreads();
    if (parts > 1) cluster_arrive(); // this block's barriers are ready
    grid_wait();

    if (warp < 4) {
        if (T::hands_over) registers_give<T::producer_regs>();
        if (warp == 0) {
            if (lane == 0) g.load_tiles();
            __syncwarp(); // the first thread to say so releases the grid
            grid_release(); // all loads are under way: what the next grid does first may overlap with the rest
        } else if (warp == 1) {
            g.load_scales(lane);
        } else if constexpr (T::fills) {
            g.fill_tiles(threadIdx.x - 64);
        }
        __syncwarp();
    } else {
        if (T::hands_over) registers_take<T::consumer_regs>();
        g.consume(warp / 4 - 1, warp % 4, lane);
    }
}

} // namespace gemmill

#define GEMMILL_ENTRY(name, Config)                                                                               \
    extern "C" __global__ void __launch_bounds__(gemmill::Traits<Config>::threads, Config::blocks_per_sm)            \
        name(const __grid_constant__ gemmill::TensorMap map_x, const __grid_constant__ gemmill::TensorMap map_y,    \
             const __grid_constant__ gemmill::TensorMap map_c, const __grid_constant__ gemmill::Params p) {       \
        gemmill::gemm<Config>(map_x, map_y, map_c, p);                                                            \
    }
#define GEMMILL_KERNEL(Config)             \
    GEMMILL_ENTRY(gemmill_fast, Config)    \
    GEMMILL_ENTRY(gemmill_scalar, gemmill::Scalar<Config>)
