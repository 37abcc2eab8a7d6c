/* Preshuffled AQ: [M, QK] viewed as (M, T, b) and stored as (T, M, b), so that a tile of k finds its b groups of every
 * row side by side. Groups beyond QK are zeros.
 */
#pragma once

#include <stdlib.h>

#include "cpu/scales.h"
#include "host/preshuffle.h"

namespace gemmill {

/* b: groups in a tile of k. The leading dimension is the distance between two tiles. */
template <int B>
struct PreshuffledScales {
    static constexpr bool kColumnMajor = false;
    static constexpr int64_t kShuffledGroups = B;

    static ScaleView view(const Problem& p, int64_t m0, int64_t g0) { return {p.aq, g0 / B * p.ldaq + m0 * B, B, 1}; }

    /* Shuffle row-major AQ into memory of its own; false when there is none. */
    static bool prepare(Problem& p, size_t element_bytes, void** owned) {
        const int64_t groups = ceil_div(p.k, kGroupK);
        const size_t bytes = static_cast<size_t>(ceil_div(groups, B) * p.m * B) * element_bytes;
        *owned = malloc(bytes ? bytes : 1);
        if (*owned == nullptr) return false;
        preshuffle(static_cast<char*>(*owned), static_cast<const char*>(p.aq), p.m, groups, B, element_bytes);
        p.aq = *owned;
        p.ldaq = p.m * B;
        return true;
    }
};

}  // namespace gemmill
