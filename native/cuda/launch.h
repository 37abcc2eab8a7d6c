/* From a checked problem to its launches: which entries, which grids, which tensor maps. */
#pragma once

#include "host/arguments.h"
#include "host/problem.h"
#include "cuda/device.h"
#include "cuda/traits.h"

namespace gemmill {

/* One 2-d operand as the copy engine is told it. */
struct View {
    const void* base;
    int64_t inner, outer, pitch; /* bytes, lines, bytes between lines */
    int box_inner, box_outer, swizzle;
};

inline bool tma_can_take(const View& v) {
    return reinterpret_cast<uintptr_t>(v.base) % 16 == 0 && v.pitch % 16 == 0 && v.pitch < (int64_t(1) << 40);
}

inline bool operator==(const View& a, const View& b) {
    return a.base == b.base && a.inner == b.inner && a.outer == b.outer && a.pitch == b.pitch && a.box_inner == b.box_inner &&
           a.box_outer == b.box_outer && a.swizzle == b.swizzle;
}

/* A map holds what it is made of and nothing else, so one made before is as good, whatever became of the memory. The driver
   takes 0.1 us for one; each thread keeps its last ones by place and address. */
struct Encoded {
    View view;
    CUtensorMap map;
};
constexpr int kEncodedBits = 6;
inline thread_local Encoded t_encoded[3][1 << kEncodedBits] = {};

inline int encode(CUtensorMap (&maps)[3], int place, const View& v) {
    const uint64_t hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(v.base)) * 0x9e3779b97f4a7c15;
    Encoded& kept = t_encoded[place][hash >> (64 - kEncodedBits)];
    CUtensorMap& map = maps[place];
    if (kept.view == v) {
        map = kept.map;
        return GEMMILL_OK;
    }
    const cuuint64_t size[2] = {static_cast<cuuint64_t>(v.inner), static_cast<cuuint64_t>(v.outer)};
    const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(v.pitch)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(v.box_inner), static_cast<cuuint32_t>(v.box_outer)};
    const cuuint32_t steps[2] = {1, 1};
    const CUtensorMapSwizzle swizzle = v.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : v.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : v.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                         : CU_TENSOR_MAP_SWIZZLE_NONE;
    GEMMILL_TRY(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(v.base), size, pitch, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    kept = {v, map};
    return GEMMILL_OK;
}

/* Blocks that share a tile's sum over k: as many as fill the device, while each has a few stages to sum. */
template <typename C>
int split_k(int64_t tiles, int64_t k_blocks, int multiprocessors) {
    int split = 1;
    while (split * 2 <= C::parts && tiles * split * 2 <= multiprocessors && k_blocks >= split * 8) split *= 2;
    return split;
}

/* What each block asks for before the grid in front of it has ended: of the weights no more than L2 holds beside what that
   grid still reads. */
template <typename C>
Early fetch_early(const Params& p, int64_t blocks, int split) {
    using T = Traits<C>;
    Early early = {};
    if (C::scalar || C::parts == 1) return early; /* large products wait for arithmetic, not for memory */
    early.stages = static_cast<int>(min_of(kEarlyBytes / (C::tile_n * kGroup) / blocks, ceil_div(p.k_blocks, split)));
    const auto share = [&](int64_t rows, int64_t row_bytes, int& lines, int& per_row) {
        const int64_t n = ceil_div(row_bytes, 128);
        if (rows * n > blocks * T::threads) return;
        lines = static_cast<int>(rows * n), per_row = static_cast<int>(n);
    };
    const int64_t groups = p.k_blocks;
    share(C::a_col ? p.k : p.m, (C::a_col ? p.m : p.k) / (C::a == Elem::i4 ? 2 : 1), early.a_lines, early.a_per_row);
    share(C::preshuffle ? ceil_div(groups, C::preshuffle) : C::aq_col ? groups : p.m,
          T::aq_bytes * (C::preshuffle ? int64_t(p.m) * C::preshuffle : C::aq_col ? p.m : groups), early.aq_lines,
          early.aq_per_row);
    return early;
}

/* The grid may begin while the one in front of it ends (programmatic dependent launch). */
inline int start(CUkernel kernel, int64_t blocks, int threads, int smem_bytes, int cluster, CUstream stream, void** arguments) {
    CUlaunchAttribute attributes[2] = {};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[0].value.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[1].value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    CUlaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>(blocks), config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = static_cast<unsigned>(threads), config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(smem_bytes);
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    GEMMILL_TRY(cuLaunchKernelEx, &config, reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
    return GEMMILL_OK;
}

template <typename C>
int launch_as(CUkernel kernel, const Device& device, Params& p, CUtensorMap (&maps)[3], CUstream stream) {
    using T = Traits<C>;
    const int64_t tiles_x = ceil_div(C::swap ? p.n : p.m, T::tile_x), tiles_y = ceil_div(C::swap ? p.m : p.n, T::tile_y);
    const int64_t tiles = tiles_x * tiles_y;
    if (tiles > INT32_MAX / 2) {
        return (Message() << "M x N = " << p.m << " x " << p.n << ": more tiles than this kernel counts").unsupported();
    }
    p.tiles_x = static_cast<int>(tiles_x), p.tiles_y = static_cast<int>(tiles_y);
    const int split = split_k<C>(tiles, p.k_blocks, device.multiprocessors);
    const int64_t resident = device.multiprocessors * C::blocks_per_sm;
    const int64_t blocks = split > 1 || tiles < resident ? tiles * split : resident;
    p.early = fetch_early<C>(p, blocks, split);
    const View c = {p.c, int64_t(p.n) * T::out_bytes, p.m, p.ldc * T::out_bytes, 128, C::swap ? T::chunk : 64, 128};
    /* The copy engine writes whole 16 bytes, also at the end of a row, and counts bytes in 32 bits, also beyond the end. */
    p.store_c = tma_can_take(c) && c.inner % 16 == 0 && c.inner + C::tile_n * T::out_bytes <= INT32_MAX;
    if (p.store_c) {
        const int code = encode(maps, 2, c);
        if (code) return code;
    }

    void* arguments[] = {&maps[0], &maps[1], &maps[2], &p};
    return start(kernel, blocks, T::threads, T::smem_bytes, split, stream, arguments);
}

/* The operands as a kernel takes them, and as the copy engine would. */
template <typename C>
struct Operands {
    Params p = {};
    View x, y;
    bool fast; /* the copy engine can take both */

    explicit Operands(const Problem& q) {
        using T = Traits<C>;
        p.x = C::swap ? q.b : q.a, p.y = C::swap ? q.a : q.b, p.aq = q.aq, p.c = q.c;
        p.ldx = C::swap ? q.ldb : q.lda, p.ldy = C::swap ? q.lda : q.ldb, p.ldaq = q.ldaq, p.ldc = q.ldc;
        p.m = static_cast<int>(q.m), p.n = static_cast<int>(q.n), p.k = static_cast<int>(q.k);
        p.k_blocks = static_cast<int>(ceil_div(q.k, kGroup));
        const int scale_bytes = bytes_of(C::aq);
        p.vector_aq = reinterpret_cast<uintptr_t>(q.aq) % static_cast<uintptr_t>(4 * scale_bytes) == 0 && q.ldaq % 4 == 0;

        const int64_t rows_x = C::swap ? q.n : q.m, rows_y = C::swap ? q.m : q.n;
        const int64_t per_byte = T::x_i4 ? 2 : 1;
        x = T::x_mn ? View{p.x, ceil_div(rows_x, per_byte), q.k, p.ldx / per_byte, T::x_line_bytes, kGroup, T::x_swizzle}
                    : View{p.x, ceil_div(q.k, per_byte), rows_x, p.ldx / per_byte, T::x_row_bytes, T::tile_x, T::x_swizzle};
        const int64_t y_per_byte = T::y_i4 ? 2 : 1;
        y = {p.y, q.k, rows_y, p.ldy, kGroup, T::tile_y, 128};
        if (T::y_raw && T::y_mn) y = {p.y, ceil_div(rows_y, y_per_byte), q.k, p.ldy / y_per_byte, T::y_line_bytes, kGroup, 0};
        if (T::y_raw && !T::y_mn) y = {p.y, ceil_div(q.k, y_per_byte), rows_y, p.ldy / y_per_byte, T::y_line_bytes, T::tile_y, 0};
        fast = q.k > 0 && tma_can_take(x) && tma_can_take(y) && p.ldx % per_byte == 0 && p.ldy % y_per_byte == 0;
    }
};

template <typename C>
int launch_fast(CUkernel kernel, const Device& device, Operands<C>& o, CUstream stream) {
    CUtensorMap maps[3] = {};
    int code = encode(maps, 0, o.x);
    if (!code) code = encode(maps, 1, o.y);
    return code ? code : launch_as<C>(kernel, device, o.p, maps, stream);
}

/* ---- K-major copies ahead of the kernel ---- */

constexpr int64_t kMostSize = INT32_MAX - 512; /* of M, N and K */
constexpr int64_t kCopyAlignment = 256;

struct Copies {
    int64_t pitch = 0, a_bytes = 0, b_bytes = 0; /* pitch: of a row of either */
};

/* What a problem's copies take; nothing where there are none to make. */
template <typename C>
Copies copies_of(int64_t m, int64_t n, int64_t k) {
    Copies copies;
    if constexpr (C::converts) {
        if (m < Plain<C>::least_m || n < Plain<C>::least_n || k == 0 || m > kMostSize || n > kMostSize || k > kMostSize) return copies;
        copies.pitch = ceil_div(k, 16) * 16; /* as the copy engine wants it */
        const auto bytes = [&](int64_t rows) { return ceil_div(rows * copies.pitch, kCopyAlignment) * kCopyAlignment; };
        if (Plain<C>::copies_a) copies.a_bytes = bytes(m);
        if (Plain<C>::copies_b) copies.b_bytes = bytes(n);
    }
    return copies;
}

template <typename C>
int64_t workspace_bytes(int64_t m, int64_t n, int64_t k) {
    const Copies copies = copies_of<C>(m, n, k);
    return copies.a_bytes + copies.b_bytes;
}

/* Two grids: the second reads what the first wrote. */
template <typename C>
int launch_converted(const Device& device, const Problem& q, const Copies& copies, uint8_t* workspace, CUstream stream) {
    Problem plain = q;
    Conversions conversions = {};
    conversions.k = static_cast<int>(q.k);
    const auto copy = [&](const uint8_t*& operand, int64_t& ld, int64_t rows, int a_block, bool i4, uint8_t* to, Conversion& conversion) {
        conversion = {operand, to, ld / (i4 ? 2 : 1), copies.pitch, static_cast<int>(rows)};
        operand = to, ld = copies.pitch;
        return ceil_div(rows, a_block) * ceil_div(q.k, kConvertK);
    };
    int64_t blocks = 0;
    if (Plain<C>::copies_a) blocks = copy(plain.a, plain.lda, q.m, kConvertRows<C::a_col>, C::a == Elem::i4, workspace, conversions.a);
    conversions.a_blocks = static_cast<int>(blocks);
    if (Plain<C>::copies_b) blocks += copy(plain.b, plain.ldb, q.n, kConvertRows<true>, false, workspace + copies.a_bytes, conversions.b);
    void* arguments[] = {&conversions};
    const int code = start(device.convert, blocks, kConvertThreads, 0, 1, stream, arguments);
    if (code) return code;
    Operands<Plain<C>> o(plain);
    return launch_fast(device.plain, device, o, stream);
}

/* workspace: at least workspace_bytes<C>() bytes, or NULL. */
template <typename C>
int launch(const Device& device, const Problem& q, void* workspace, CUstream stream) {
    if (q.m == 0 || q.n == 0) return GEMMILL_OK;
    if (q.m > kMostSize || q.n > kMostSize || q.k > kMostSize) {
        return (Message() << "M, N, K = " << q.m << ", " << q.n << ", " << q.k << ": this kernel takes less than 2^31 - 512")
            .unsupported();
    }
    Operands<C> o(q);
    if (!o.fast) {
        CUtensorMap maps[3] = {};
        return launch_as<Scalar<C>>(device.scalar, device, o.p, maps, stream);
    }
    if constexpr (C::converts) {
        const Copies copies = copies_of<C>(q.m, q.n, q.k);
        if (workspace && copies.pitch) return launch_converted<C>(device, q, copies, static_cast<uint8_t*>(workspace), stream);
    }
    return launch_fast(device.fast, device, o, stream);
}

}  // namespace gemmill
