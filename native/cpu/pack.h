/* Packing: from codes as the caller stores them to panels as the micro-kernel reads them.
 *
 * A panel holds Rows rows of A (or columns of B) and runs along k: step s holds, for each row, its Pair
 * consecutive elements k = s * Pair onwards. Two passes: codes are moved into panel order as bytes, where
 * moving is cheap, then decoded in place order, which needs no shuffles across elements.
 */
#pragma once

#include "cpu/transpose.h"

namespace gemmill {

/* Bytes of code scratch that packing a panel needs: two chunks, moved sixteen elements of k at a time. */
template <int Rows>
constexpr size_t kPanelScratch = 2 * round_up(Rows * kCacheLine, static_cast<size_t>(kDecodeStep)) + Rows * 16;

/* Move codes stored with k contiguous; `rows` and `depth` say how much of the panel exists. */
template <int Rows, int Pair, uint8_t Zero>
void gather_contiguous_k(uint8_t* out, const uint8_t* in, int64_t row_stride, int64_t rows, int depth) {
    static_assert(Rows % 8 == 0, "transposed eight rows at a time");
    constexpr int64_t step = Rows * Pair;
    for (int r = 0; r < Rows; r += 8) {
        const int64_t have = rows - r;
        for (int k = 0; k < depth; k += 16) {
            uint8_t* to = out + k / Pair * step + r * Pair;
            const uint8_t* from = in + r * row_stride + k;
            if (have >= 8 && k + 16 <= depth) {
                transpose_8x16<Pair>(to, step, from, row_stride);
                continue;
            }
            /* At an edge: read what exists, pad with the code of zero. */
            uint8_t edge[8 * 16];
            memset(edge, Zero, sizeof edge);
            const size_t count = static_cast<size_t>(min_of(16, depth - k));
            for (int i = 0; i < min_of<int64_t>(have, 8); ++i) memcpy(edge + 16 * i, from + i * row_stride, count);
            transpose_8x16<Pair>(to, step, edge, 16);
        }
    }
}

/* One step of a panel from lines that are Rows codes long. */
template <int Rows, int Pair>
GEMMILL_INLINE void gather_step(uint8_t* out, const uint8_t* even, const uint8_t* odd) {
    static_assert(Pair == 1 || Pair == 2, "one or two elements a step");
    if (Pair == 1) {
        memcpy(out, even, Rows);
    } else {
        interleave<Rows>(out, even, odd);
    }
}

/* Move codes stored with rows contiguous. */
template <int Rows, int Pair, uint8_t Zero>
void gather_contiguous_rows(uint8_t* out, const uint8_t* in, int64_t k_stride, int64_t rows, int depth) {
    int k = 0;
    if (rows >= Rows) {
        for (; k + Pair <= depth; k += Pair) {
            gather_step<Rows, Pair>(out + k * Rows, in + k * k_stride, in + (k + 1) * k_stride);
        }
    }
    /* At an edge: read what exists, pad with the code of zero. */
    const size_t count = static_cast<size_t>(min_of<int64_t>(rows, Rows));
    for (; k < depth; k += Pair) {
        uint8_t edge[2][Rows];
        memset(edge, Zero, sizeof edge);
        memcpy(edge[0], in + k * k_stride, count);
        if (k + 1 < depth) memcpy(edge[1], in + (k + 1) * k_stride, count);
        gather_step<Rows, Pair>(out + k * Rows, edge[0], edge[1]);
    }
}

/* Lay each of `count` elements out Spread times. */
template <int Spread>
void spread_elements(Element* __restrict out, const Element* __restrict in, int count) {
    for (int i = 0; i < count; ++i) {
        for (int j = 0; j < Spread; ++j) out[i * Spread + j] = in[i];
    }
}

/* Move `depth` elements of k, from element `k` on, into panel order. */
template <typename Format, Order O, int Rows, int Pair>
GEMMILL_INLINE void gather(uint8_t* out, const uint8_t* in, int64_t stride, int64_t rows, int k, int depth) {
    if (O == Order::kContiguousK) {
        gather_contiguous_k<Rows, Pair, Format::kZeroCode>(out, in + k, stride, rows, depth);
    } else {
        gather_contiguous_rows<Rows, Pair, Format::kZeroCode>(out, in + k * stride, stride, rows, depth);
    }
}

/* Ask for the lines of a panel's codes ahead of their use. */
template <Order O>
void prefetch_codes(const uint8_t* in, int64_t stride, int64_t rows, int64_t depth) {
    const int64_t lines = O == Order::kContiguousK ? rows : depth, length = O == Order::kContiguousK ? depth : rows;
    for (int64_t i = 0; i < lines; ++i) {
        for (int64_t at = 0; at < length; at += kCacheLine) __builtin_prefetch(in + i * stride + at);
    }
}

/* Pack one panel. `in` points at its first code; `rows` of it and `depth` elements of k exist.
 *
 * By chunks of one cache line of k, so that scratch stays in level-1 cache; a chunk is decoded after the next one has
 * been moved, when its bytes have left the store buffer. */
template <typename Format, Order O, int Rows, int Pair, int Spread>
void pack_panel(Element* out, uint8_t* scratch, const uint8_t* in, int64_t stride, int64_t rows, int depth) {
    constexpr int chunk = static_cast<int>(kCacheLine);
    constexpr size_t half = round_up(Rows * chunk, kDecodeStep);
    gather<Format, O, Rows, Pair>(scratch, in, stride, rows, 0, min_of(depth, chunk));
    for (int k = 0, turn = 0; k < depth; k += chunk, turn ^= 1) {
        const int next = k + chunk;
        if (next < depth) {
            gather<Format, O, Rows, Pair>(scratch + (turn ^ 1) * half, in, stride, rows, next, min_of(depth - next, chunk));
        }
        const int codes = (min_of(depth - k, chunk) + Pair - 1) / Pair * Pair * Rows;
        const uint8_t* from = scratch + turn * half;
        if constexpr (Spread == 1) {
            Decoder<Format>::run(out + k * Rows, from, codes);
        } else {
            Element decoded[half];
            Decoder<Format>::run(decoded, from, codes);
            spread_elements<Spread>(out + k * Rows * Spread, decoded, codes);
        }
    }
}

}  // namespace gemmill
