/* One work item: a rectangle of C of at most one cache block, summed over the whole of k.
 *
 *   for each tile of k:   scales and A of the block are packed once
 *     for each NR columns:   a panel of B is packed into level-1 cache
 *       for each MR rows:      the micro-kernel runs
 *
 * B panels are used at once and never stored; the float32 sums live in the workspace, one register tile after
 * another. The order of every sum depends on k and the register tile alone, not on how C was cut.
 */
#pragma once

#include "host/problem.h"

namespace gemmill {

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
    static constexpr size_t kSums = 0;
    static constexpr size_t kScales = kSums + place(sizeof(float) * kTileM * kTileN);
    static constexpr size_t kPanelB = kScales + place(sizeof(float) * kTileM * kGroups);
    static constexpr size_t kPanelsA = kPanelB + place(sizeof(Element) * (kNR * kTileK + kDecodeStep));
    static constexpr size_t kCodes = kPanelsA + place(sizeof(Element) * (kTileM * kTileK + kDecodeStep));
    static constexpr size_t kScratchBytes =
        panel_scratch_bytes<(kMR > kNR ? kMR : kNR), kDecodeStep>(kTileK);
    static constexpr size_t kUnpacked = kCodes + place(kScratchBytes);
    /* Rows of unpacked int4 codes have two spare places, and 32 that edges may read. */
    static constexpr int kUnpackedRow = (Kernel::kOrderA == Order::kContiguousK ? kTileK : kTileM) + 2;
    static constexpr int kUnpackedRows = Kernel::kOrderA == Order::kContiguousK ? kTileM : kTileK;
    static constexpr size_t kBytes =
        kUnpacked + (kUnpacks ? place(static_cast<size_t>(kUnpackedRow) * kUnpackedRows) : 0);

    char* base;

    float* sums() const { return reinterpret_cast<float*>(base + kSums); }
    float* scales() const { return reinterpret_cast<float*>(base + kScales); }
    Element* panel_b() const { return reinterpret_cast<Element*>(base + kPanelB); }
    Element* panels_a() const { return reinterpret_cast<Element*>(base + kPanelsA); }
    uint8_t* codes() const { return reinterpret_cast<uint8_t*>(base + kCodes); }
    uint8_t* unpacked() const { return reinterpret_cast<uint8_t*>(base + kUnpacked); }
};

/* Element (row, k) of a matrix stored in order O. */
template <Order O>
constexpr int64_t element_index(int64_t row, int64_t k, int64_t stride) {
    return O == Order::kContiguousK ? row * stride + k : k * stride + row;
}

/* Pack rows [m0, m0 + rows) of A for k in [k0, k0 + depth) into consecutive panels. */
template <typename Kernel>
void pack_a(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
    constexpr int MR = Kernel::kRegisterM;
    constexpr Order order = Kernel::kOrderA;
    for (int64_t r = 0; r < rows; r += MR) {
        Element* panel = ws.panels_a() + r * Kernel::kTileK;
        const uint8_t* in = p.a + element_index<order>(m0 + r, k0, p.lda);
        pack_panel<typename Kernel::A, order, MR, kPair>(panel, ws.codes(), in, p.lda, rows - r, depth);
    }
}

/* The same for packed int4. Each stored line of the tile is unpacked first; lines may start mid-byte. */
template <typename Kernel>
void pack_int4_a(const Workspace<Kernel>& ws, const Problem& p, int64_t m0, int64_t rows, int64_t k0, int depth) {
    constexpr int MR = Kernel::kRegisterM;
    constexpr Order order = Kernel::kOrderA;
    constexpr bool by_row = order == Order::kContiguousK;
    constexpr int64_t line = Workspace<Kernel>::kUnpackedRow;
    for (int64_t r = 0; r < rows; r += MR) {
        const int64_t have = min_of<int64_t>(rows - r, MR);
        const int64_t lines = by_row ? have : depth;
        const int64_t length = by_row ? depth : have;
        uint8_t* codes = ws.unpacked();
        for (int64_t i = 0; i < lines; ++i) {
            const int64_t first = by_row ? element_index<order>(m0 + r + i, k0, p.lda)
                                         : element_index<order>(m0 + r, k0 + i, p.lda);
            const uint8_t* at = unpack_int4_span(codes + i * line, p.a, first, length);
            if (at != codes + i * line) memmove(codes + i * line, at, static_cast<size_t>(length));
        }
        Element* panel = ws.panels_a() + r * Kernel::kTileK;
        pack_panel<Int4, order, MR, kPair>(panel, ws.codes(), codes, line, have, depth);
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

/* Convert the sums of a finished rectangle into C. */
template <typename Kernel>
void store_rectangle(const Workspace<Kernel>& ws, const Problem& p, const Rectangle& rect) {
    constexpr int MR = Kernel::kRegisterM, NR = Kernel::kRegisterN;
    using Type = typename Kernel::Out::Type;
    const float* tile = ws.sums();
    for (int64_t n = rect.n0; n < rect.n1; n += NR) {
        const size_t bytes = static_cast<size_t>(min_of<int64_t>(rect.n1 - n, NR)) * sizeof(Type);
        for (int64_t m = rect.m0; m < rect.m1; m += MR) {
            const int64_t rows = min_of<int64_t>(rect.m1 - m, MR);
            for (int64_t r = 0; r < rows; ++r) {
                /* By way of a buffer: C may have any alignment, and its last columns may be few. */
                Type row[NR];
                Kernel::Out::store(row, tile + r * NR, NR);
                memcpy(p.c + ((m + r) * p.ldc + n) * static_cast<int64_t>(sizeof(Type)), row, bytes);
            }
            tile += MR * NR;
        }
    }
}

template <typename Kernel>
void run_rectangle(const Workspace<Kernel>& ws, const Problem& p, const Rectangle& rect) {
    constexpr int MR = Kernel::kRegisterM, NR = Kernel::kRegisterN;
    const int64_t rows = rect.m1 - rect.m0;
    for (int64_t k0 = 0; k0 < p.k; k0 += Kernel::kTileK) {
        const int depth = static_cast<int>(min_of<int64_t>(p.k - k0, Kernel::kTileK));
        const ScaleView scales = scale_view<Kernel>(p, rect.m0, k0 / kGroupK);
        load_scales<typename Kernel::Scale>(ws.scales(), Kernel::kTileM, scales, rows, ceil_div(depth, kGroupK));
        if constexpr (Kernel::kPackedA) {
            pack_int4_a<Kernel>(ws, p, rect.m0, rows, k0, depth);
        } else {
            pack_a<Kernel>(ws, p, rect.m0, rows, k0, depth);
        }
        RegisterTile tile{};
        tile.b = ws.panel_b();
        tile.scale_stride = Kernel::kTileM;
        tile.c = ws.sums();
        tile.depth = depth;
        tile.first = k0 == 0;
        for (int64_t n = rect.n0; n < rect.n1; n += NR) {
            const uint8_t* in = p.b + element_index<Kernel::kOrderB>(n, k0, p.ldb);
            pack_panel<typename Kernel::B, Kernel::kOrderB, NR, kPair>(ws.panel_b(), ws.codes(), in, p.ldb,
                                                                       rect.n1 - n, depth);
            for (int64_t r = 0; r < rows; r += MR) {
                tile.a = ws.panels_a() + r * Kernel::kTileK;
                tile.scales = ws.scales() + r;
                run_register_tile<MR, NR>(tile, static_cast<int>(min_of<int64_t>(rows - r, MR)));
                tile.c += MR * NR;
            }
        }
    }
    store_rectangle<Kernel>(ws, p, rect);
}

}  // namespace gemmill
