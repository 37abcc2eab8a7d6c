/* The register tile: MR rows x NR columns of C, summed over the k of one cache block.
 *
 * multiply_step() comes from the arch's micro_*.h; here is the loop around it, the scaling of each group's sum, and
 * the choice among row counts, so that a panel with few rows does few rows' work.
 */
#pragma once

#include "host/base.h"

namespace gemmill {

/* Width of a packed panel: whole register tiles, and at least `wide`, so that packing moves wide pieces. */
constexpr int panel_width(int register_width, int wide) {
    int width = register_width;
    while (width % 8) width += register_width;
    while (width < wide) width *= 2;
    return width;
}

template <int MR>
constexpr int kPanelRows = panel_width(MR, 24);

template <int NR>
constexpr int kPanelColumns = panel_width(NR, 16);

/* What one register tile reads and writes; a and b point into their panels. */
struct RegisterTile {
    const Element* a;
    const Element* b;
    const float* scales;   /* AQ of group g, row r: scales[g * scale_stride + r] */
    int64_t scale_stride;
    int64_t next_panel;    /* the next panel of A, relative to a */
    float* c;              /* MR x NR float32, row-major, aligned */
    int depth;             /* k elements, a multiple of the group but for the last one */
    bool first;            /* nothing summed yet: start from zero instead of c */
};

/* Inlined: a call for every register tile costs 1.5 % on AVX2. */
template <int Rows, int MR, int NR>
GEMMILL_INLINE void run_rows(const RegisterTile& t) {
    constexpr int vectors = NR / kLanes;
    constexpr int a_step = kPanelRows<MR> * kPair * kSpread, b_step = kPanelColumns<NR> * kPair;
    /* With few rows the sums are too few to hide the latency of an addition: sum alternate steps apart. */
    constexpr int chains = Rows * vectors;
    constexpr int split = chains >= kChains ? 1 : 2 * chains >= kChains ? 2 : 4 * chains >= kChains ? 4 : 8;
    const Element* a = t.a;
    const Element* b = t.b;
    const float* scales = t.scales;
    bool first = t.first;
    for (int k = 0; k < t.depth; k += static_cast<int>(kGroupK)) {
        const int steps = (min_of(t.depth - k, static_cast<int>(kGroupK)) + kPair - 1) / kPair;
        Vector sum[split][Rows][vectors] = {};
        int s = 0;
        for (; s + split <= steps; s += split) {
#pragma GCC unroll 8
            for (int i = 0; i < split; ++i) {
                if constexpr (kPrefetchA && Rows == MR) __builtin_prefetch(a + t.next_panel);
                multiply_step<Rows, vectors>(sum[i], a, b);
                a += a_step;
                b += b_step;
            }
        }
        for (; s < steps; ++s) {
            multiply_step<Rows, vectors>(sum[0], a, b);
            a += a_step;
            b += b_step;
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) {
                Vector total = sum[0][r][v];
#pragma GCC unroll 8
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
