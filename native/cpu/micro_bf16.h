/* Micro-kernel arithmetic for bfloat16 panels: vdpbf16ps adds the products of a pair of k to a float32 lane. */
#pragma once

#include "cpu/intrinsics.h"

#include "host/base.h"

namespace gemmill {

constexpr int kPair = 2;
constexpr int kLanes = 16;
constexpr int kChains = 12; /* independent sums that hide the latency of one addition */
constexpr int kSpread = 1; /* copies of each element of A in its panel */
constexpr bool kPrefetchA = false; /* a panel of B takes two thirds of level-1 cache */
typedef __m512 Vector;

GEMMILL_INLINE Vector load_vector(const float* p) { return _mm512_load_ps(p); }
GEMMILL_INLINE void store_vector(float* p, Vector v) { _mm512_store_ps(p, v); }
GEMMILL_INLINE Vector scale_add(float scale, Vector x, Vector sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(scale), x, sum);
}

template <int Rows, int Vectors>
GEMMILL_INLINE void multiply_step(Vector (&sum)[Rows][Vectors], const uint16_t* a, const uint16_t* b) {
    __m512i column[Vectors];
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) column[v] = _mm512_load_si512(b + 2 * v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
        int32_t pair;
        memcpy(&pair, a + 2 * r, sizeof pair);
        const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 16
        for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], row, (__m512bh)column[v]);
    }
}

}  // namespace gemmill
