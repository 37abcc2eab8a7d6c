/* Scratch memory of one thread: what one cache block needs, whatever the problem's size. */
#pragma once

#include "cpu/micro_kernel.h"
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace gemmill {

/* Depth of a panel of B: with the rows of A beside it, it fits in level-1 cache. */
constexpr int kPanelDepth = 128 * kPair;

/* Offsets in bytes from one allocation. */
template <typename Kernel>
struct Workspace {
    static constexpr int kTileM = Kernel::kTileM, kTileN = Kernel::kTileN, kTileK = Kernel::kTileK;
    static constexpr int kMR = Kernel::kRegisterM, kNR = Kernel::kRegisterN;

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
    static constexpr size_t kUnpacked = kCodes + place(kPanelScratch<kWidest>);
    static constexpr size_t kBytes = kUnpacked + place(Kernel::PackA::template unpacked_bytes<Kernel>());

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

}  // namespace gemmill
