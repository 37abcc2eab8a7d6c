// The kernel: C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n].
//
// One producer warpgroup and two consumer warpgroups share a ring of stages, each 128 k (one scale group) deep:
//   warp 0     starts the copy engine's loads of X and Y
//   warp 1     gathers the tile's scales, several groups at once
//   warps 2-3  convert Y, or fill what the copy engine can't take (fill.cuh); idle otherwise
//   consumers  per stage: wgmma from zero, then acc += scale * product in float32, because wgmma keeps fewer
//              bits than float32 when it accumulates 8-bit products over a long k
// A full barrier counts those who fill a stage, an empty barrier the consumer warps that have read it.
//
// A cluster is either two blocks with neighbouring X tiles that multicast each other half of Y (C::multicast), or
// several blocks that split k of one tile and add their parts in rank order through distributed shared memory, so
// that the result does not depend on timing.
#pragma once
#include <cuda_fp8.h>
#include <type_traits>

#include "fill.cuh"
#include "fragment.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

namespace gemmill {

template <class C>
struct Gemm {
    using T = Traits<C>;

    static constexpr int kConsumerWarps = T::halves_k ? 4 : 8; // that read a stage
    static constexpr bool kFills = T::x_fill != Fill::tma || T::y_fill != Fill::tma;

    const Params& p;
    const TensorMap* map_x;
    const TensorMap* map_y;
    uint32_t smem;
    int rank, ranks; // in the cluster
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
    __device__ __forceinline__ int tile_count() const {
        return (p.tiles_x + C::multicast - 1) / C::multicast * p.tiles_y;
    }
    __device__ __forceinline__ Tile tile_at(int t) const {
        constexpr int band = 16 / C::multicast;
        const int units = (p.tiles_x + C::multicast - 1) / C::multicast;
        const int in_band = band * p.tiles_y;
        const int first = t / in_band * band, r = t % in_band;
        const int height = min(units - first, band);
        const int x = (first + r % height) * C::multicast;
        return {C::multicast > 1 ? x + rank : x, r / height};
    }
    template <class F>
    __device__ __forceinline__ void each_tile(F f) const {
        const int step = gridDim.x / ranks;
        for (int t = blockIdx.x / ranks; t < tile_count(); t += step) f(tile_at(t));
    }

    // ---- producers ----

    __device__ __forceinline__ void load_tiles() const {
        Stage s;
        each_tile([&](Tile tile) {
            for (int kb = first_k; kb < last_k; ++kb) {
                barrier_wait(empty(s.index), s.phase ^ 1);
                const uint32_t bar = full(s.index);
                constexpr bool tma_x = T::x_fill == Fill::tma, tma_y = T::y_fill == Fill::tma;
                barrier_arrive_expect(bar, (tma_x ? T::x_bytes : 0) + (tma_y ? T::y_bytes : 0));
                if constexpr (tma_x) load_x(x_stage(s.index), bar, tile.x * T::tile_x, kb * kGroup);
                if constexpr (tma_y) load_y(y_stage(s.index), bar, tile.y * T::tile_y, kb * kGroup);
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
    __device__ __forceinline__ void load_y(uint32_t dst, uint32_t bar, int row, int k) const {
        if constexpr (C::multicast > 1) {
            constexpr int part = T::tile_y / C::multicast;
            tma_load_multicast(dst + rank * part * kGroup, map_y, bar, k, row + rank * part, (1 << C::multicast) - 1);
        } else {
            tma_load(dst, map_y, bar, k, row);
        }
    }

    __device__ __forceinline__ void load_raw(int stage, int row, int k) const {
        constexpr int per_byte = T::y_i4 ? 2 : 1;
        barrier_arrive_expect(raw_full(stage), T::raw_bytes);
        const int inner = (T::y_mn ? row : k) / per_byte / 16 * 16; // see transpose_unpack_y()
        tma_load(raw_stage(stage), map_y, raw_full(stage), inner, T::y_mn ? k : row);
    }

    static __device__ __forceinline__ float decode_scale(uint8_t byte) {
        const __half_raw h = __nv_cvt_fp8_to_halfraw(byte, C::aq == Elem::e4m3 ? __NV_E4M3 : __NV_E5M2);
        return __half2float(h);
    }
    __device__ __forceinline__ float scale(int m, int g) const {
        if (m >= p.m || g >= last_k) return 0;
        const int64_t i = C::preshuffle ? g / C::preshuffle * p.ldaq + int64_t(m) * C::preshuffle + g % C::preshuffle
                          : C::aq_col   ? g * p.ldaq + m
                                        : m * p.ldaq + g;
        if constexpr (C::aq == Elem::f32) return __ldg(static_cast<const float*>(p.aq) + i);
        return decode_scale(__ldg(static_cast<const uint8_t*>(p.aq) + i));
    }
    // Scales of groups g .. g + count - 1 of row m. Where a row's groups lie side by side they are loaded together: loads
    // of single scales, a row a lane, would take a quarter of the level-1 bandwidth that wgmma needs.
    template <int count>
    __device__ __forceinline__ void load_scales_of(float (&v)[count], int m, int g) const {
        static_assert(count == 2 || count == 4, "a vector load");
        if (!C::preshuffle && !C::aq_col && p.vector_aq && g % count == 0 && g + count <= last_k) {
            const int64_t i = m * p.ldaq + g;
            if constexpr (C::aq == Elem::f32) {
                using V = std::conditional_t<count == 4, float4, float2>;
                V f = {};
                if (m < p.m) f = __ldg(reinterpret_cast<const V*>(static_cast<const float*>(p.aq) + i));
                v[0] = f.x, v[1] = f.y;
                if constexpr (count == 4) v[2] = f.z, v[3] = f.w;
            } else {
                using V = std::conditional_t<count == 4, uint32_t, uint16_t>;
                uint32_t w = 0;
                if (m < p.m) w = __ldg(reinterpret_cast<const V*>(static_cast<const uint8_t*>(p.aq) + i));
#pragma unroll
                for (int u = 0; u < count; ++u) v[u] = decode_scale(w >> (8 * u) & 0xff);
            }
        } else {
#pragma unroll
            for (int u = 0; u < count; ++u) v[u] = scale(m, g + u);
        }
    }
    __device__ __forceinline__ void load_scales(int lane) const {
        constexpr int per_lane = (C::tile_m + 31) / 32;
        constexpr int batch = T::producer_regs <= 48 || (T::big && (C::preshuffle || C::aq_col)) ? 2 : 4;
        Stage s;
        each_tile([&](Tile tile) {
            const int m0 = (C::swap ? tile.y : tile.x) * C::tile_m + lane;
            for (int kb = first_k; kb < last_k; kb += batch) {
                float v[per_lane][batch];
#pragma unroll
                for (int i = 0; i < per_lane; ++i) load_scales_of(v[i], m0 + 32 * i, kb);
#pragma unroll
                for (int u = 0; u < batch; ++u) {
                    if (kb + u >= last_k) break;
                    barrier_wait(empty(s.index), s.phase ^ 1);
#pragma unroll
                    for (int i = 0; i < per_lane; ++i)
                        if (lane + 32 * i < C::tile_m) store_shared(scale_stage(s.index) + (lane + 32 * i) * 4, v[i][u]);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(full(s.index));
                    s.next();
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

    __device__ __forceinline__ void release(int stage, int lane) const {
        __syncwarp();
        if constexpr (C::multicast > 1) {
            if (lane < C::multicast) barrier_arrive_at(empty(stage), lane);
        } else {
            if (lane == 0) barrier_arrive(empty(stage));
        }
    }

    // sum += scale * (X slab * Y chunk) over one stage.
    __device__ __forceinline__ void promote(Block& sum, const Block& product, uint32_t scales, int chunk,
                                            const float (&row_scale)[2], int q) const {
        if constexpr (C::swap) {
#pragma unroll
            for (int j = 0; j < T::chunk / 8; ++j) {
                const float2 f = load_shared_float2(scales + (chunk * T::chunk + 8 * j + 2 * q) * 4);
                sum[4 * j + 0] += f.x * product[4 * j + 0];
                sum[4 * j + 1] += f.y * product[4 * j + 1];
                sum[4 * j + 2] += f.x * product[4 * j + 2];
                sum[4 * j + 3] += f.y * product[4 * j + 3];
            }
        } else {
#pragma unroll
            for (int i = 0; i < T::chunk / 2; ++i) sum[i] += row_scale[i / 2 & 1] * product[i];
        }
    }

    // product = X slab * Y chunk over one stage; X from fragments or from shared memory.
    static __device__ __forceinline__ void multiply(Block& product, const uint32_t (&a)[4][4], uint32_t x, uint32_t y) {
        constexpr Elem xe = T::x_i4 ? Elem::e4m3 : T::x_elem, ye = T::y_i4 ? Elem::e4m3 : T::y_elem;
        using Mma = Wgmma<T::chunk, xe, ye>;
        pin(product);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            if constexpr (T::x_regs) {
                Mma::run(product, a[step], describe(y) + step * kDescribeStep, step > 0);
            } else {
                Mma::run(product, describe(x) + step * kDescribeStep, describe(y) + step * kDescribeStep, step > 0);
            }
        }
        wgmma_commit();
        wgmma_wait<0>();
        pin(product);
    }

    __device__ __forceinline__ void consume(int group, int warp, int lane) const {
        const int q = lane % 4;
        const int row[2] = {fragment_row<T::x_mn, T::x_i4>(warp, lane, 0), fragment_row<T::x_mn, T::x_i4>(warp, lane, 1)};

        constexpr int stride = T::halves_k ? 2 : 1;
        Stage s;
        int turn = T::halves_k ? group : 0; // which of the tile's first stages is this warpgroup's first
        if (turn) s.next();
        each_tile([&](Tile tile) {
            Block sum[T::slabs][T::chunks];
#pragma unroll
            for (int i = 0; i < T::slabs; ++i)
#pragma unroll
                for (int j = 0; j < T::chunks; ++j)
#pragma unroll
                    for (int e = 0; e < T::chunk / 2; ++e) sum[i][j][e] = 0;

            for (int kb = first_k + turn; kb < last_k; kb += stride) {
                barrier_wait(full(s.index), s.phase);
                const uint32_t x = x_stage(s.index), y = y_stage(s.index), scales = scale_stage(s.index);
#pragma unroll
                for (int slab = 0; slab < T::slabs; ++slab) {
                    const int row0 = T::halves_k ? 0 : (group * T::slabs + slab) * 64;
                    float row_scale[2] = {0, 0};
                    if constexpr (!C::swap) {
                        row_scale[0] = load_shared_float(scales + (row0 + row[0]) * 4);
                        row_scale[1] = load_shared_float(scales + (row0 + row[1]) * 4);
                    }
                    uint32_t a[4][4];
                    if constexpr (T::x_regs) {
#pragma unroll
                        for (int step = 0; step < 4; ++step) load_fragment<T>(a[step], x, row0, warp, lane, step);
                    }
#pragma unroll
                    for (int chunk = 0; chunk < T::chunks; ++chunk) {
                        Block product;
                        multiply(product, a, x + row0 * kGroup, y + chunk * T::chunk * kGroup);
                        const bool last = slab == T::slabs - 1 && chunk == T::chunks - 1;
                        // The stage is read, but for the scales of a swapped tile.
                        if (!C::swap && last) release(s.index, lane);
                        promote(sum[slab][chunk], product, scales, chunk, row_scale, q);
                        if (C::swap && last) release(s.index, lane);
                    }
                }
                s.next();
                if (T::halves_k) s.next();
            }
            if constexpr (T::halves_k) {
                turn ^= (last_k - first_k) & 1; // an odd number of stages: the other one is first in the next tile
                join_halves(sum[0][0], group, warp * 32 + lane);
            }
            if (T::can_split && ranks > 1) {
                write_split(tile, sum, group, warp, lane);
            } else if (!T::halves_k || group == 0) {
                write(tile, sum, group, warp, opaque(lane));
            }
        });
    }

    // Add the second warpgroup's sums to the first's.
    __device__ __forceinline__ void join_halves(Block& sum, int group, int thread) const {
        const uint32_t at = smem + T::at_partial + thread * 4;
        if (group == 1) {
            named_barrier(3, 256); // the last tile's have been read
#pragma unroll
            for (int i = 0; i < T::chunk / 2; ++i) store_shared(at + i * 512, sum[i]);
            named_barrier(4, 256);
        } else {
            named_barrier(3, 256);
            named_barrier(4, 256);
#pragma unroll
            for (int i = 0; i < T::chunk / 2; ++i) sum[i] += load_shared_float(at + i * 512);
        }
    }

    __device__ __forceinline__ void write(Tile tile, const Block (&sum)[T::slabs][T::chunks], int group, int warp,
                                          int lane) const {
        constexpr int height = C::swap ? T::chunk : 64, width = C::swap ? 64 : T::chunk;
        using V = typename Out<C::out>::type;
        using S = Staging<width, T::out_bytes>;
        const S staging{smem + T::at_staging + group * T::staging_bytes};
        const int x[2] = {fragment_row<T::x_mn, T::x_i4>(warp, lane, 0), fragment_row<T::x_mn, T::x_i4>(warp, lane, 1)};
#pragma unroll
        for (int slab = 0; slab < T::slabs; ++slab) {
#pragma unroll
            for (int chunk = 0; chunk < T::chunks; ++chunk) {
                named_barrier(1 + group, 128); // the last block has left the staging area
                stage_block<C, T, C::out>(staging, sum[slab][chunk], 0, 0, x, lane % 4);
                named_barrier(1 + group, 128);
                const int gx = tile.x * T::tile_x + (T::halves_k ? 0 : group * T::slabs + slab) * 64, gy = tile.y * T::tile_y + chunk * T::chunk;
                const int m0 = C::swap ? gy : gx, n0 = C::swap ? gx : gy;
#pragma unroll 4
                for (int i = warp * 32 + lane; i < height * S::pieces; i += 128) {
                    const int row = i / S::pieces, piece = i % S::pieces;
                    const int m = m0 + row, n = n0 + piece * S::per_piece;
                    if (m >= p.m || n >= p.n) continue;
                    V* c = static_cast<V*>(p.c) + m * p.ldc + n;
                    if (p.vector_c && n + S::per_piece <= p.n) {
                        *reinterpret_cast<uint4*>(c) = load_shared_16(staging.piece(row, piece));
                    } else {
#pragma unroll 1
                        for (int e = 0; e < S::per_piece && n + e < p.n; ++e)
                            load_shared(staging.piece(row, piece) + e * T::out_bytes, c[e]);
                    }
                }
            }
        }
    }

    // Each block of the cluster adds up and stores its share of the tile. One tile a cluster: the ring is drained.
    __device__ __forceinline__ void write_split(Tile tile, const Block (&sum)[T::slabs][T::chunks], int group, int warp,
                                                int lane) const {
        using S = Staging<C::tile_n, 4>;
        const S part{smem};
        const int x[2] = {fragment_row<T::x_mn, T::x_i4>(warp, lane, 0), fragment_row<T::x_mn, T::x_i4>(warp, lane, 1)};
        named_barrier(5, 256); // both warpgroups are past their last read of the ring
#pragma unroll
        for (int slab = 0; slab < T::slabs; ++slab) {
#pragma unroll
            for (int chunk = 0; chunk < T::chunks; ++chunk) {
                if (T::halves_k && group == 1) break;
                const int x0 = T::halves_k ? 0 : (group * T::slabs + slab) * 64, y0 = chunk * T::chunk;
                stage_block<C, T, Elem::f32>(part, sum[slab][chunk], C::swap ? y0 : x0, C::swap ? x0 : y0, x, lane % 4);
            }
        }
        cluster_sync();
        const int m0 = (C::swap ? tile.y : tile.x) * C::tile_m, n0 = (C::swap ? tile.x : tile.y) * C::tile_n;
        using O = Out<C::out>;
        for (int i = (rank * 2 + group) * 128 + warp * 32 + lane; i < C::tile_m * S::pieces; i += ranks * 256) {
            const int row = i / S::pieces, piece = i % S::pieces;
            const int m = m0 + row, n = n0 + piece * 4;
            if (m >= p.m) break;
            if (n >= p.n) continue;
            float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (int r = 0; r < ranks; ++r) {
                const float4 f = load_remote(part.piece(row, piece), r);
                v.x += f.x, v.y += f.y, v.z += f.z, v.w += f.w;
            }
            auto* c = static_cast<typename O::type*>(p.c) + m * p.ldc + n;
            if (p.vector_c && n + 4 <= p.n) {
                const auto low = O::two(v.x, v.y), high = O::two(v.z, v.w);
                struct alignas(4 * T::out_bytes) Four {
                    std::remove_const_t<decltype(low)> a, b;
                };
                *reinterpret_cast<Four*>(c) = {low, high};
            } else {
                c[0] = O::one(v.x);
                if (n + 1 < p.n) c[1] = O::one(v.y);
                if (n + 2 < p.n) c[2] = O::one(v.z);
                if (n + 3 < p.n) c[3] = O::one(v.w);
            }
        }
    }
};

template <class C>
__device__ __forceinline__ void gemm(const TensorMap& map_x, const TensorMap& map_y, const Params& p) {
    using G = Gemm<C>;
    using T = Traits<C>;
    extern __shared__ __align__(1024) uint8_t dynamic_smem[];
    const uint32_t smem = smem_address(dynamic_smem);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int rank = cluster_rank(), ranks = cluster_size();
    const bool split = C::multicast == 1 && ranks > 1;
    const int parts = split ? ranks : 1, part = split ? rank : 0;
    const G g{p, &map_x, &map_y, smem, rank, ranks, int(int64_t(p.k_blocks) * part / parts),
              int(int64_t(p.k_blocks) * (part + 1) / parts)};

    if (threadIdx.x == 0) {
        if (smem % 1024) __trap();
        for (int s = 0; s < T::stages; ++s) {
            barrier_init(g.full(s), 2 + (G::kFills ? 2 : 0));
            barrier_init(g.empty(s), G::kConsumerWarps * C::multicast);
            if (T::y_raw) barrier_init(g.raw_full(s), 1);
        }
        barrier_init_fence();
        if (T::x_fill == Fill::tma) tma_prefetch(&map_x);
        if (T::y_fill != Fill::scalar) tma_prefetch(&map_y);
    }
    __syncthreads();
    if (C::multicast > 1) cluster_sync(); // the neighbour's barriers are ready
    grid_wait();

    if (warp < 4) {
        registers_give<T::producer_regs>();
        if (warp == 0) {
            if (lane == 0) g.load_tiles();
            grid_release(); // all loads are under way: what the next grid does first may overlap with the rest
        } else if (warp == 1) {
            g.load_scales(lane);
        } else if constexpr (G::kFills) {
            g.fill_tiles(threadIdx.x - 64);
        }
        __syncwarp();
        if (split) cluster_sync(); // beside the consumers' in write_split()
    } else {
        registers_take<T::consumer_regs>();
        g.consume(warp / 4 - 1, warp % 4, lane);
    }
    if (ranks > 1) cluster_sync(); // a neighbour may still read this block's memory or arrive on its barriers
}

} // namespace gemmill

#define GEMMILL_ENTRY(name, Config)                                                                               \
    extern "C" __global__ void __launch_bounds__(gemmill::kThreads, Config::blocks_per_sm)                           \
        name(const __grid_constant__ gemmill::TensorMap map_x, const __grid_constant__ gemmill::TensorMap map_y,    \
             const __grid_constant__ gemmill::Params p) {                                                         \
        gemmill::gemm<Config>(map_x, map_y, p);                                                                   \
    }
#define GEMMILL_KERNEL(Config)             \
    GEMMILL_ENTRY(gemmill_fast, Config)    \
    GEMMILL_ENTRY(gemmill_scalar, gemmill::Scalar<Config>)
