/* AQ of one cache block as float32: group by group, rows contiguous, so that a register tile reads them in order. */
#pragma once

#include "cpu/fp8.h"
#include "cpu/problem.h"

namespace gemmill {

struct Float32 {};

template <typename Format>
constexpr size_t kScaleBytes = 1;
template <>
inline constexpr size_t kScaleBytes<Float32> = 4;

template <typename Format>
GEMMILL_INLINE float scale_at(const void* aq, int64_t index) {
    return fp8_to_float<Format>(static_cast<const uint8_t*>(aq)[index]);
}

template <>
GEMMILL_INLINE float scale_at<Float32>(const void* aq, int64_t index) {
    float value;
    memcpy(&value, static_cast<const char*>(aq) + 4 * index, sizeof value);
    return value;
}

/* Element (m, g) of AQ lies at m * row_stride + g * group_stride from `origin`. */
struct ScaleView {
    const void* aq;
    int64_t origin, row_stride, group_stride;
};

/* How AQ is stored. prepare(): what the host entry hands on for the caller's AQ. */
template <bool ColumnMajor>
struct PlainScales {
    static constexpr bool kColumnMajor = ColumnMajor;
    static constexpr int64_t kShuffledGroups = 0;

    static ScaleView view(const Problem& p, int64_t m0, int64_t g0) {
        if (ColumnMajor) return {p.aq, g0 * p.ldaq + m0, 1, p.ldaq};
        return {p.aq, m0 * p.ldaq + g0, p.ldaq, 1};
    }

    /* Nothing to do, nothing to free. */
    static bool prepare(Problem&, size_t, void** owned) {
        *owned = nullptr;
        return true;
    }
};

/* out[g * out_stride + r] for `groups` groups and `rows` rows. */
template <typename Format>
void load_scales(float* out, int64_t out_stride, const ScaleView& view, int64_t rows, int64_t groups) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t index = view.origin + r * view.row_stride + g * view.group_stride;
            out[g * out_stride + r] = scale_at<Format>(view.aq, index);
        }
    }
}

}  // namespace gemmill
