/* Packing: from codes as the caller stores them to panels as the micro-kernel reads them.
 *
 * A panel holds Rows rows of A (or columns of B) and runs along k: step s holds, for each row, its Pair
 * consecutive elements k = s * Pair onwards. Two passes: codes are moved into panel order as bytes, where
 * moving is cheap, then decoded in place order, which needs no shuffles across elements.
 */
#pragma once

#include "cpu/transpose.h"

namespace gemmill {

/* Bytes of code scratch that one panel needs: steps are moved sixteen at a time, decoding rounds up. */
template <int Rows, int DecodeStep>
constexpr size_t panel_scratch_bytes(int tile_k) {
    return round_up(static_cast<size_t>(Rows * (tile_k + 16)), static_cast<size_t>(DecodeStep));
}

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

/* Pack one panel. `in` points at its first code; `rows` of it and `depth` elements of k exist. */
template <typename Format, Order O, int Rows, int Pair, int Spread>
void pack_panel(Element* out, uint8_t* scratch, const uint8_t* in, int64_t stride, int64_t rows, int depth) {
    if (O == Order::kContiguousK) {
        gather_contiguous_k<Rows, Pair, Format::kZeroCode>(scratch, in, stride, rows, depth);
    } else {
        gather_contiguous_rows<Rows, Pair, Format::kZeroCode>(scratch, in, stride, rows, depth);
    }
    const int codes = (depth + Pair - 1) / Pair * Pair * Rows;
    if constexpr (Spread == 1) {
        Decoder<Format>::run(out, scratch, codes);
    } else {
        constexpr int chunk = 16 * kDecodeStep;
        Element decoded[chunk];
        for (int i = 0; i < codes; i += chunk) {
            Decoder<Format>::run(decoded, scratch + i, min_of(chunk, codes - i));
            spread_elements<Spread>(out + i * Spread, decoded, min_of(chunk, codes - i));
        }
    }
}

}  // namespace gemmill
