/* A stored one code a byte: pack rows of a cache block straight from the caller's memory. */
#pragma once

#include "cpu/workspace.h"

namespace gemmill {

struct DenseA {
    template <typename Kernel>
    static constexpr size_t unpacked_bytes() {
        return 0;
    }

    /* Pack rows [m0, m0 + rows) for k in [k0, k0 + depth) into consecutive panels. */
    template <typename Kernel>
    static void run(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth);
};

template <typename Kernel>
void DenseA::run(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
    constexpr int panel = Workspace<Kernel>::kPanelM;
    constexpr Order order = Kernel::kOrderA;
    for (int64_t r = 0; r < rows; r += panel) {
        const uint8_t* in = p.a + element_index<order>(m0 + r, k0, p.lda);
        const int64_t left = rows - r - panel;
        if (left > 0) {
            prefetch_codes<order>(in + element_index<order>(panel, 0, p.lda), p.lda, min_of<int64_t>(left, panel),
                                  depth);
        }
        pack_panel<typename Kernel::A, order, panel, kPair, kSpread>(ws.panel_a(r), ws.codes(), in, p.lda, rows - r, depth);
    }
}

}  // namespace gemmill
