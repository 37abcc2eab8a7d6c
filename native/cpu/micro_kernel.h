/* The register tile: MR rows x NR columns of C, summed over the k of one cache block.
 *
 * multiply_step() comes from the arch's micro_*.h; here is the loop around it, the scaling of each group's sum, and
 * the choice among row counts, so that a panel with few rows does few rows' work.
 */
#pragma once

#include "host/base.h"

namespace gemmill {

/* What one register tile reads and writes. Panels step by MR * kPair and NR * kPair elements. */
struct RegisterTile {
    const Element* a;
    const Element* b;
    const float* scales;   /* AQ of group g, row r: scales[g * scale_stride + r] */
    int64_t scale_stride;
    float* c;              /* MR x NR float32, row-major, aligned */
    int depth;             /* k elements, a multiple of the group but for the last one */
    bool first;            /* nothing summed yet: start from zero instead of c */
};

template <int Rows, int MR, int NR>
void run_rows(const RegisterTile& t) {
    constexpr int vectors = NR / kLanes;
    /* With few rows the sums are too few to hide the latency of an FMA: sum alternate steps apart. */
    constexpr int split = Rows * vectors >= 8 ? 1 : Rows * vectors >= 4 ? 2 : 4;
    const Element* a = t.a;
    const Element* b = t.b;
    const float* scales = t.scales;
    bool first = t.first;
    for (int k = 0; k < t.depth; k += static_cast<int>(kGroupK)) {
        const int steps = (min_of(t.depth - k, static_cast<int>(kGroupK)) + kPair - 1) / kPair;
        Vector sum[split][Rows][vectors] = {};
        int s = 0;
        for (; s + split <= steps; s += split) {
#pragma GCC unroll 4
            for (int i = 0; i < split; ++i) {
                multiply_step<Rows, vectors, MR>(sum[i], a, b);
                a += MR * kPair;
                b += NR * kPair;
            }
        }
        for (; s < steps; ++s) {
            multiply_step<Rows, vectors, MR>(sum[0], a, b);
            a += MR * kPair;
            b += NR * kPair;
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) {
                Vector total = sum[0][r][v];
#pragma GCC unroll 4
                for (int i = 1; i < split; ++i) total += sum[i][r][v];
                float* c = t.c + r * NR + v * kLanes;
                store_vector(c, scale_add(scales[r], total, first ? Vector{} : load_vector(c)));
            }
        }
        scales += t.scale_stride;
        first = false;
    }
}

template <int MR, int NR, int Rows = MR>
GEMMILL_INLINE void run_register_tile(const RegisterTile& t, int rows) {
    if constexpr (Rows == 1) {
        (void)rows;
        run_rows<1, MR, NR>(t);
    } else {
        if (rows == Rows) return run_rows<Rows, MR, NR>(t);
        run_register_tile<MR, NR, Rows - 1>(t, rows);
    }
}

}  // namespace gemmill
