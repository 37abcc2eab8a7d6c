/* Micro-kernel for float32 panels: C32 += AQ * (A panel x B panel), one group of k at a time.
 *
 * Written with the compiler's vector extension, so one text serves SSE, AVX2, AVX-512 and NEON; multiply and
 * add contract to FMA where the target has it (-ffp-contract=fast). The sum of a group stays in registers.
 */
#pragma once

#include "host/base.h"

#if defined(__AVX512F__)
#define GEMMILL_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define GEMMILL_VECTOR_BYTES 32
#else
#define GEMMILL_VECTOR_BYTES 16
#endif

namespace gemmill {

constexpr int kPair = 1;                                /* elements of k in one step */
constexpr int kLanes = GEMMILL_VECTOR_BYTES / 4;        /* columns of one vector */
constexpr int kChains = 8; /* independent sums that hide the latency of one addition */
/* Copies of each element of A in its panel. SSE has no broadcasting load; a copy in every lane spares the shuffle. */
#if defined(__SSE2__) && !defined(__AVX__)
constexpr int kSpread = kLanes;
#else
constexpr int kSpread = 1;
#endif
/* Fetch the next panel of A while this one is multiplied: pays where a panel of B leaves level-1 cache room for it. */
constexpr bool kPrefetchA = GEMMILL_VECTOR_BYTES == 32;
typedef float Vector __attribute__((vector_size(GEMMILL_VECTOR_BYTES)));

GEMMILL_INLINE Vector load_vector(const float* p) { return *reinterpret_cast<const Vector*>(p); }
GEMMILL_INLINE void store_vector(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
GEMMILL_INLINE Vector scale_add(float scale, Vector x, Vector sum) { return sum + x * scale; }

/* x - 0 is x for every x, so it costs nothing; x + 0 would be an addition, since it makes +0 of -0. */
GEMMILL_INLINE Vector broadcast(float x) { return x - Vector{}; }
GEMMILL_INLINE Vector load_row(const float* a) { return kSpread > 1 ? load_vector(a) : broadcast(*a); }

/* Add one step: a column of A times a row of B. */
template <int Rows, int Vectors>
GEMMILL_INLINE void multiply_step(Vector (&sum)[Rows][Vectors], const float* a, const float* b) {
    Vector column[Vectors];
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) column[v] = load_vector(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < Vectors; ++v) sum[r][v] += column[v] * load_row(a + r * kSpread);
    }
}

}  // namespace gemmill
