/* An operand tile in LDS: rows of K, cut into 16-byte chunks that are permuted within their row.
 *
 * The permutation (chunk index XOR a function of the row) spreads every access pattern of the kernel over all
 * banks without padding: 16 rows of one chunk (fragment reads), one row (K-contiguous staging), and single words
 * of rows 16 apart (transposed staging). */
#pragma once

#include "hip/types.h"

namespace gemmill::hip {

template <int kRows, int kRowBytes>
struct Tile {
    static constexpr int kBytes = kRows * kRowBytes;
    static constexpr u32 kChunks = kRowBytes / kChunk;
    static constexpr u32 kMask = (kChunks < 16 ? kChunks : 16) - 1;
    static_assert(kChunks >= 8 && (kChunks & (kChunks - 1)) == 0, "a row is one group at least, and a power of two");

    static u32 offset(u32 row, u32 byte) {
        const u32 chunk = byte / kChunk ^ ((row ^ row / 16 * 2) & kMask);
        return row * kRowBytes + chunk * kChunk + byte % kChunk;
    }
};

}  // namespace gemmill::hip
