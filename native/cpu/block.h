/* One work item: a rectangle of C of at most one cache block, summed over the whole of k.
 *
 *   for each tile of k:      scales and A of the block are packed (level-2 cache)
 *     for each 128 steps of k, for each panel of B:  its few columns are packed (level-1 cache)
 *       for each register tile:  the micro-kernel runs
 *
 * Panels of B are used at once and never kept; the float32 sums live in the workspace, one register tile after
 * another. The order of every sum depends on k and the register tile alone, not on how C was cut.
 */
#pragma once

#include "cpu/one_row.h"
#include "cpu/scales.h"
#include "cpu/workspace.h"

namespace gemmill {

/* Convert a finished register tile into C at (m, n): `rows` by `columns` of it exist. */
template <typename Kernel>
void store_tile(const float* sums, const Problem& p, int64_t m, int64_t n, int64_t rows, int64_t columns) {
    using Type = typename Kernel::Out::Type;
    const size_t bytes = static_cast<size_t>(columns) * sizeof(Type);
    for (int64_t r = 0; r < rows; ++r) {
        /* By way of a buffer: C may have any alignment, and its last columns may be few. */
        Type row[Kernel::kRegisterN];
        Kernel::Out::store(row, sums + r * Kernel::kRegisterN, Kernel::kRegisterN);
        char* to = p.c + ((m + r) * p.ldc + n) * static_cast<int64_t>(sizeof(Type));
        if (columns == Kernel::kRegisterN) {
            memcpy(to, row, sizeof row);
        } else {
            memcpy(to, row, bytes);
        }
    }
}

/* Ask for the lines that store_tile() will write. */
template <typename Kernel>
void prefetch_tile(const Problem& p, int64_t m, int64_t n, int64_t rows) {
    constexpr int64_t size = sizeof(typename Kernel::Out::Type);
    for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(p.c + ((m + r) * p.ldc + n) * size, 1);
}

/* Where K = 0, no group exists and C is zero. */
template <typename Kernel>
void store_zeros(const Problem& p, const Rectangle& rect) {
    constexpr int64_t size = sizeof(typename Kernel::Out::Type); /* all bits zero is +0 in every type of C */
    const size_t bytes = static_cast<size_t>((rect.n1 - rect.n0) * size);
    for (int64_t m = rect.m0; m < rect.m1; ++m) memset(p.c + (m * p.ldc + rect.n0) * size, 0, bytes);
}

/* Pack one panel of B, k in [k0 + k1, k0 + k1 + depth), and multiply every row of the block by it. */
template <typename Kernel>
void run_panel(const Workspace<Kernel>& ws, const Problem& p, const Rectangle& rect, int64_t n0, int64_t k0, int k1,
               int depth) {
    constexpr int MR = Kernel::kRegisterM, NR = Kernel::kRegisterN;
    constexpr int PM = Workspace<Kernel>::kPanelM, PN = Workspace<Kernel>::kPanelN;
    const int64_t rows = rect.m1 - rect.m0, columns = min_of<int64_t>(rect.n1 - n0, PN);
    const uint8_t* in = p.b + element_index<Kernel::kOrderB>(n0, k0 + k1, p.ldb);
    pack_panel<typename Kernel::B, Kernel::kOrderB, PN, kPair, 1>(ws.panel_b(), ws.codes(), in, p.ldb, columns, depth);

    const int64_t next = min_of<int64_t>(rect.n1 - n0 - PN, PN);
    if (next > 0) {
        prefetch_codes<Kernel::kOrderB>(in + element_index<Kernel::kOrderB>(PN, 0, p.ldb), p.ldb, next, depth);
    }

    const bool last = k0 + k1 + depth == p.k;
    RegisterTile tile{};
    tile.scale_stride = Kernel::kTileM;
    tile.next_panel = static_cast<int64_t>(PM) * Kernel::kTileK * kSpread;
    tile.depth = depth;
    tile.first = k0 + k1 == 0;
    tile.c = ws.sums(rect, n0);
    for (int64_t r = 0; r < rows; r += MR) {
        const int64_t have = min_of<int64_t>(rows - r, MR);
        tile.a = ws.panel_a(r / PM * PM) + (k1 * PM + r % PM * kPair) * kSpread;
        tile.scales = ws.scales() + k1 / kGroupK * Kernel::kTileM + r;
        for (int64_t c = 0; c < columns; c += NR) {
            tile.b = ws.panel_b() + c * kPair;
            for (int i = 0; i < MR * NR; i += 16) __builtin_prefetch(tile.c + MR * NR + i, 1);
            if (last) prefetch_tile<Kernel>(p, rect.m0 + r, n0 + c, have);
            run_register_tile<MR, NR>(tile, static_cast<int>(have));
            if (last) store_tile<Kernel>(tile.c, p, rect.m0 + r, n0 + c, have, min_of<int64_t>(columns - c, NR));
            tile.c += MR * NR;
        }
    }
}

template <typename Kernel>
void run_rectangle(const Workspace<Kernel>& ws, const Problem& p, const Rectangle& rect) {
    const int64_t rows = rect.m1 - rect.m0;
    if (p.k == 0) return store_zeros<Kernel>(p, rect);
    if constexpr (kDecodesInRegisters) {
        if (p.m == 1) return run_one_row<Kernel>(ws, p, rect);
    }
    for (int64_t k0 = 0; k0 < p.k; k0 += Kernel::kTileK) {
        const int depth = static_cast<int>(min_of<int64_t>(p.k - k0, Kernel::kTileK));
        const ScaleView scales = Kernel::ScaleLayout::view(p, rect.m0, k0 / kGroupK);
        load_scales<typename Kernel::Scale>(ws.scales(), Kernel::kTileM, scales, rows, ceil_div(depth, kGroupK));
        Kernel::PackA::run(ws, p, rect.m0, rows, k0, depth);
        /* k outside: what is read of A for all panels of B is no deeper than one panel, and stays in cache. */
        for (int k1 = 0; k1 < depth; k1 += kPanelDepth) {
            for (int64_t n = rect.n0; n < rect.n1; n += Workspace<Kernel>::kPanelN) {
                run_panel<Kernel>(ws, p, rect, n, k0, k1, min_of(depth - k1, kPanelDepth));
            }
        }
    }
}

}  // namespace gemmill
