// What convert.cuh needs of ptx.cuh, on the host.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "traits.h"

#define __device__
#define __forceinline__ inline

struct uint4 {
    uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct Index {
    int x;
};
inline Index blockIdx, threadIdx;

namespace gemmill {

// The byte permutation as the PTX manual has it: bit 3 of a selector replicates the sign.
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = low | uint64_t(high) << 32;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t pick = selector >> 4 * i & 15, byte = bytes >> 8 * (pick & 7) & 255;
        d |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return d;
}

template <class P>
P aligned(P p, uintptr_t bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes) abort();
    return p;
}
template <int words, int pieces>
void load_words(uint32_t (&w)[words][pieces], int i, const uint8_t* p) {
    for (int c = 0; c < words; ++c) memcpy(&w[c][i], aligned(p, 4 * words) + 4 * c, 4);
}
inline void store_words(uint8_t* p, uint4 v) { memcpy(aligned(p, 16), &v, 16); }

inline uint8_t load_global(const uint8_t* p) { return *p; }
inline void grid_release() {}
inline void grid_wait() {}

// Named by what else the headers hold, and not called.
template <int>
uint32_t swizzled(uint32_t);
uint32_t load_shared_4(uint32_t);
void store_shared(uint32_t, uint32_t);
void store_shared(uint32_t, uint4);

} // namespace gemmill
