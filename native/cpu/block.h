/* One work item: a rectangle of C of at most one cache block, summed over the whole of k.
 *
 *   for each tile of k:      scales and A of the block are packed (level-2 cache)
 *     for each panel of B:     a few columns and at most 128 steps of k are packed (level-1 cache)
 *       for each register tile:  the micro-kernel runs
 *
 * Panels of B are used at once and never kept; the float32 sums live in the workspace, one register tile after
 * another. The order of every sum depends on k and the register tile alone, not on how C was cut.
 */
#pragma once

#include "cpu/base.h"

namespace gemmill {

/* Depth of a panel of B: with the rows of A beside it, it fits in level-1 cache. */
constexpr int kPanelDepth = 128 * kPair;

struct Problem {
    const uint8_t* a;
    const uint8_t* b;
    const void* aq;
    char* c;
    int64_t m, n, k;
    int64_t lda, ldb, ldaq, ldc;
};

/* Rows [m0, m1) and columns [n0, n1) of C. */
struct Rectangle {
    int64_t m0, m1, n0, n1;
};

/* Scratch of one thread, sized by the kernel's cache block; offsets in bytes from one allocation. */
template <typename Kernel>
struct Workspace {
    static constexpr int kTileM = Kernel::kTileM, kTileN = Kernel::kTileN, kTileK = Kernel::kTileK;
    static constexpr int kMR = Kernel::kRegisterM, kNR = Kernel::kRegisterN;
    static constexpr bool kUnpacks = Kernel::kPackedA;

    static constexpr size_t place(size_t bytes) { return round_up(bytes, 2 * kCacheLine); }

    static constexpr int kGroups = kTileK / static_cast<int>(kGroupK);
    static constexpr int kPanelM = kPanelRows<kMR>, kPanelN = kPanelColumns<kNR>;
    static constexpr size_t kSums = 0;
    static constexpr int kRowsM = (kTileM + kMR - 1) / kMR * kMR;
    static constexpr size_t kScales = kSums + place(sizeof(float) * kRowsM * ((kTileN + kPanelN - 1) / kPanelN * kPanelN));
    static constexpr size_t kPanelB = kScales + place(sizeof(float) * kTileM * kGroups);
    static constexpr size_t kPanels = static_cast<size_t>((kTileM + kPanelM - 1) / kPanelM);
    static constexpr size_t kPanelsA = kPanelB + place(sizeof(Element) * (kPanelN * kPanelDepth + kDecodeStep));
    static constexpr size_t kCodes = kPanelsA + place(sizeof(Element) * (kPanels * kPanelM * kTileK * kSpread + kDecodeStep));
    static constexpr int kWidest = kPanelM > kPanelN ? kPanelM : kPanelN;
    static constexpr size_t kUnpacked = kCodes + place(panel_scratch_bytes<kWidest, kDecodeStep>(kTileK));
    /* Lines of a panel's unpacked int4 codes; unpacking works in whole vectors and may run past a line's end. */
    static constexpr bool kLineIsRow = Kernel::kOrderA == Order::kContiguousK;
    static constexpr int kUnpackedLine = (kLineIsRow ? kTileK : kPanelM) + kUnpackSlack;
    static constexpr int kUnpackedLines = kLineIsRow ? kPanelM : kTileK;
    static constexpr size_t kBytes =
        kUnpacked + (kUnpacks ? place(static_cast<size_t>(kUnpackedLine) * kUnpackedLines) : 0);

    char* base;

    /* Sums of the panel of columns that starts at n. */
    float* sums(const Rectangle& rect, int64_t n) const {
        return reinterpret_cast<float*>(base + kSums) + (n - rect.n0) * kRowsM;
    }
    float* scales() const { return reinterpret_cast<float*>(base + kScales); }
    Element* panel_b() const { return reinterpret_cast<Element*>(base + kPanelB); }
    /* The panel that holds row r of the block; r is a multiple of kPanelM. */
    Element* panel_a(int64_t r) const { return reinterpret_cast<Element*>(base + kPanelsA) + r * kTileK * kSpread; }
    uint8_t* codes() const { return reinterpret_cast<uint8_t*>(base + kCodes); }
    uint8_t* unpacked() const { return reinterpret_cast<uint8_t*>(base + kUnpacked); }
};

/* Element (row, k) of a matrix stored in order O. */
template <Order O>
constexpr int64_t element_index(int64_t row, int64_t k, int64_t stride) {
    return O == Order::kContiguousK ? row * stride + k : k * stride + row;
}

/* Ask for the lines of a panel's codes ahead of their use. */
template <Order O>
void prefetch_codes(const uint8_t* in, int64_t stride, int64_t rows, int64_t depth) {
    const int64_t lines = O == Order::kContiguousK ? rows : depth, length = O == Order::kContiguousK ? depth : rows;
    for (int64_t i = 0; i < lines; ++i) {
        for (int64_t at = 0; at < length; at += kCacheLine) __builtin_prefetch(in + i * stride + at);
    }
}

/* Pack rows [m0, m0 + rows) of A for k in [k0, k0 + depth) into consecutive panels. */
template <typename Kernel>
void pack_a(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
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

/* The same for packed int4. The lines of a panel are unpacked first; each may start mid-byte. */
template <typename Kernel>
void pack_int4_a(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
    constexpr int panel = Workspace<Kernel>::kPanelM;
    constexpr Order order = Kernel::kOrderA;
    constexpr bool by_row = order == Order::kContiguousK;
    constexpr int64_t line = Workspace<Kernel>::kUnpackedLine;
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

template <typename Kernel>
ScaleView scale_view(const Problem& p, int64_t m0, int64_t g0) {
    if (Kernel::kPreshuffled) { /* (T, M, b): a k tile is one of T */
        constexpr int64_t b = Kernel::kTileK / kGroupK;
        return {p.aq, g0 / b * p.ldaq + m0 * b, b, 1};
    }
    if (Kernel::kScalesColumnMajor) return {p.aq, g0 * p.ldaq + m0, 1, p.ldaq};
    return {p.aq, m0 * p.ldaq + g0, p.ldaq, 1};
}

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

    const bool last = k0 + k1 + depth == p.k;
    RegisterTile tile{};
    tile.scale_stride = Kernel::kTileM;
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
    for (int64_t k0 = 0; k0 < p.k; k0 += Kernel::kTileK) {
        const int depth = static_cast<int>(min_of<int64_t>(p.k - k0, Kernel::kTileK));
        const ScaleView scales = scale_view<Kernel>(p, rect.m0, k0 / kGroupK);
        load_scales<typename Kernel::Scale>(ws.scales(), Kernel::kTileM, scales, rows, ceil_div(depth, kGroupK));
        if constexpr (Kernel::kPackedA) {
            pack_int4_a<Kernel>(ws, p, rect.m0, rows, k0, depth);
        } else {
            pack_a<Kernel>(ws, p, rect.m0, rows, k0, depth);
        }
        for (int64_t n = rect.n0; n < rect.n1; n += Workspace<Kernel>::kPanelN) {
            for (int k1 = 0; k1 < depth; k1 += kPanelDepth) {
                run_panel<Kernel>(ws, p, rect, n, k0, k1, min_of(depth - k1, kPanelDepth));
            }
        }
    }
}

}  // namespace gemmill
