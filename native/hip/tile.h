/* An operand tile in LDS: rows of K, cut into 16-byte chunks that are permuted within their row.
 *
 * The permutation (chunk index XOR a function of the row) spreads every access pattern of the kernel over all
 * banks without padding: 16 rows of one chunk (fragment reads), one row (K-contiguous staging), and single words
 * of rows 16 apart (transposed staging). */
#ifndef GEMMILL_HIP_TILE_H
#define GEMMILL_HIP_TILE_H

#include "types.h"

template <int ROWS, int ROW_BYTES>
struct Tile {
    static constexpr int BYTES = ROWS * ROW_BYTES;
    static constexpr u32 CHUNKS = ROW_BYTES / CHUNK;
    static constexpr u32 MASK = (CHUNKS < 16 ? CHUNKS : 16) - 1;
    static_assert(CHUNKS >= 8 && (CHUNKS & (CHUNKS - 1)) == 0, "a row is one group at least, and a power of two");

    static u32 offset(u32 row, u32 byte) {
        const u32 chunk = byte / CHUNK ^ ((row ^ row / 16 * 2) & MASK);
        return row * ROW_BYTES + chunk * CHUNK + byte % CHUNK;
    }
};

#endif /* GEMMILL_HIP_TILE_H */
