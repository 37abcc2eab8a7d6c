/* One row of A: every code of B is decoded in registers, in the order it is stored, and used once. Nothing of B is packed,
 * since moving a code costs as much as using it.
 */
#pragma once

#include "cpu/scales.h"
#include "cpu/workspace.h"

namespace gemmill {

/* Elements of k whose A is decoded at a time. */
constexpr int kRowDepth = 1 << 14;

/* One step of codes, of which `count` exist. */
template <typename Format>
GEMMILL_INLINE void load_codes(Vector (&out)[2], const uint8_t* codes, int64_t count) {
    if (count >= kDecodeStep) return Decoder<Format>::load(out, codes);
    uint8_t edge[kDecodeStep];
    memset(edge, Format::kZeroCode, sizeof edge);
    memcpy(edge, codes, static_cast<size_t>(count));
    Decoder<Format>::load(out, edge);
}

/* Dot product of one column of B, k contiguous, with `depth` elements of A that zeros follow. */
template <typename Format>
GEMMILL_INLINE float dot_codes(const float* a, const uint8_t* codes, int depth) {
    Vector sum[2] = {}, b[2];
    for (int k = 0; k < depth; k += kDecodeStep) {
        load_codes<Format>(b, codes + k, depth - k);
        for (int i = 0; i < 2; ++i) sum[i] += b[i] * load_vector(a + k + i * kLanes);
    }
    return Decoder<Format>::sum_lanes(sum[0] + sum[1]);
}

/* sums[n] += A x B for Steps elements of k: Steps lines of B, n contiguous. */
template <typename Format, int Steps>
GEMMILL_INLINE void add_lines(float* sums, const float* a, const uint8_t* codes, int64_t stride, int64_t columns) {
    for (int64_t n = 0; n < columns; n += kDecodeStep) {
        Vector sum[2] = {load_vector(sums + n), load_vector(sums + n + kLanes)}, b[2];
        for (int k = 0; k < Steps; ++k) {
            load_codes<Format>(b, codes + k * stride + n, columns - n);
            for (int i = 0; i < 2; ++i) sum[i] += b[i] * a[k];
        }
        for (int i = 0; i < 2; ++i) store_vector(sums + n + i * kLanes, sum[i]);
    }
}

/* total[n] += scale * (A x B) for one group of k. `sums` is scratch. */
template <typename Format>
void add_group(float* total, float* sums, float scale, const float* a, const uint8_t* codes, int64_t stride,
               int64_t columns, int depth) {
    memset(sums, 0, sizeof(float) * round_up(static_cast<size_t>(columns), kDecodeStep));
    int k = 0;
    for (; k + 4 <= depth; k += 4) add_lines<Format, 4>(sums, a + k, codes + k * stride, stride, columns);
    for (; k < depth; ++k) add_lines<Format, 1>(sums, a + k, codes + k * stride, stride, columns);
    for (int64_t n = 0; n < columns; ++n) total[n] += scale * sums[n];
}

/* Columns [n0, n1) of the one row of C. */
template <typename Kernel>
void run_one_row(const Workspace<Kernel>& ws, const Problem& p, const Rectangle& rect) {
    using Format = typename Kernel::B;
    constexpr Order order = Kernel::kOrderB;
    constexpr int group = static_cast<int>(kGroupK), tile = Kernel::kTileK;
    static_assert(kRowDepth % tile == 0 && kRowDepth / group <= Kernel::kTileM * Workspace<Kernel>::kGroups, "fits");
    static_assert(2 * Kernel::kTileN + kRowDepth + kDecodeStep <= Kernel::kTileM * Kernel::kTileN, "fits");
    const int64_t columns = rect.n1 - rect.n0;
    float* total = ws.sums(rect, rect.n0);
    float* sums = total + Kernel::kTileN;
    float* a = sums + Kernel::kTileN;
    memset(total, 0, sizeof(float) * static_cast<size_t>(columns));
    for (int64_t k0 = 0; k0 < p.k; k0 += kRowDepth) {
        const int depth = static_cast<int>(min_of<int64_t>(p.k - k0, kRowDepth));
        for (int k = 0; k < depth; k += tile) {
            const int have = min_of(depth - k, tile);
            const ScaleView scales = Kernel::ScaleLayout::view(p, rect.m0, (k0 + k) / group);
            load_scales<typename Kernel::Scale>(ws.scales() + k / group, 1, scales, 1, ceil_div(have, group));
            Kernel::PackA::run(ws, p, rect.m0, 1, k0 + k, have);
            for (int i = 0; i < have; ++i) a[k + i] = ws.panel_a(0)[i * Workspace<Kernel>::kPanelM];
        }
        memset(a + depth, 0, sizeof(float) * kDecodeStep);
        const uint8_t* codes = p.b + element_index<order>(rect.n0, k0, p.ldb);
        if constexpr (order == Order::kContiguousK) {
            for (int64_t n = 0; n < columns; ++n) {
                for (int k = 0; k < depth; k += group) {
                    const float sum = dot_codes<Format>(a + k, codes + n * p.ldb + k, min_of(depth - k, group));
                    total[n] += ws.scales()[k / group] * sum;
                }
            }
        } else {
            for (int k = 0; k < depth; k += group) {
                add_group<Format>(total, sums, ws.scales()[k / group], a + k, codes + k * p.ldb, p.ldb, columns,
                                  min_of(depth - k, group));
            }
        }
    }
    using Type = typename Kernel::Out::Type;
    char* c = p.c + (rect.m0 * p.ldc + rect.n0) * static_cast<int64_t>(sizeof(Type));
    for (int64_t n = 0; n < columns; n += 64) {
        Type row[64]; /* C may have any alignment */
        const size_t count = static_cast<size_t>(min_of<int64_t>(columns - n, 64));
        Kernel::Out::store(row, total + n, static_cast<int64_t>(count));
        memcpy(c + static_cast<size_t>(n) * sizeof(Type), row, count * sizeof(Type));
    }
}

}  // namespace gemmill
