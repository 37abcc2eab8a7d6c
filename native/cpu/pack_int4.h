/* A stored as packed int4: the lines of a panel are unpacked to one code a byte, then packed like any other. */
#pragma once

#include "cpu/int4.h"
#include "cpu/workspace.h"

namespace gemmill {

struct Int4A {
    /* Codes of one unpacked line: a row where k is contiguous, else one k of every row of a panel. */
    template <typename Kernel>
    static constexpr int line_codes() {
        return (Kernel::kOrderA == Order::kContiguousK ? Kernel::kTileK : kPanelRows<Kernel::kRegisterM>) + kUnpackSlack;
    }

    template <typename Kernel>
    static constexpr size_t unpacked_bytes() {
        const int lines = Kernel::kOrderA == Order::kContiguousK ? kPanelRows<Kernel::kRegisterM> : Kernel::kTileK;
        return static_cast<size_t>(lines) * line_codes<Kernel>();
    }

    /* Pack rows [m0, m0 + rows) for k in [k0, k0 + depth) into consecutive panels. Lines may start mid-byte. */
    template <typename Kernel>
    static void run(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth);
};

template <typename Kernel>
void Int4A::run(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
    constexpr int panel = Workspace<Kernel>::kPanelM;
    constexpr Order order = Kernel::kOrderA;
    constexpr bool by_row = order == Order::kContiguousK;
    constexpr int64_t line = line_codes<Kernel>();
    for (int64_t r = 0; r < rows; r += panel) {
        const int64_t have = min_of<int64_t>(rows - r, panel);
        const int64_t lines = by_row ? have : depth;
        const int64_t length = by_row ? depth : have;
        uint8_t* codes = ws.unpacked();
        for (int64_t i = 0; i < lines; ++i) {
            const int64_t first = by_row ? element_index<order>(m0 + r + i, k0, p.lda)
                                         : element_index<order>(m0 + r, k0 + i, p.lda);
            unpack_int4_span(codes + i * line, p.a, first, length);
        }
        pack_panel<Int4, order, panel, kPair, kSpread>(ws.panel_a(r), ws.codes(), codes, line, have, depth);
    }
}

}  // namespace gemmill
