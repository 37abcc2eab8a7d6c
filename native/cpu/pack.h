/* Packing: from codes as the caller stores them to panels as the micro-kernel reads them.
 *
 * A panel holds Rows rows of A (or columns of B) and runs along k: step s holds, for each row, its Pair
 * consecutive elements k = s * Pair onwards. Two passes: codes are moved into panel order as bytes, where
 * moving is cheap, then decoded in place order, which needs no shuffles across elements.
 */
#pragma once

#include "cpu/transpose.h"

namespace gemmill {

/* Bytes that the code scratch of one panel needs: rows below eight are written eight wide, decoding rounds up. */
template <int Rows, int DecodeStep>
constexpr size_t panel_scratch_bytes(int tile_k) {
    return round_up(static_cast<size_t>(Rows * (tile_k + 16) + 64), static_cast<size_t>(DecodeStep));
}

/* Move codes stored with k contiguous; `rows` and `depth` say how much of the panel exists. */
template <int Rows, int Pair, uint8_t Zero>
void gather_contiguous_k(uint8_t* out, const uint8_t* in, int64_t row_stride, int64_t rows, int depth) {
    static_assert(Rows % 8 == 0 || Rows < 8, "transposed eight rows at a time");
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

/* Move codes stored with rows contiguous. */
template <int Rows, int Pair, uint8_t Zero>
void gather_contiguous_rows(uint8_t* out, const uint8_t* in, int64_t k_stride, int64_t rows, int depth) {
    static_assert(Pair == 1 || Pair == 2, "one or two elements a step");
    uint8_t edge[2][Rows];
    memset(edge, Zero, sizeof edge);
    for (int k = 0; k < depth; k += Pair) {
        const uint8_t* even = in + k * k_stride;
        const uint8_t* odd = even + k_stride;
        if (rows < Rows) {
            memcpy(edge[0], even, static_cast<size_t>(rows));
            even = edge[0];
        }
        if (Pair == 1) {
            memcpy(out + k * Rows, even, Rows);
            continue;
        }
        if (k + 1 == depth) {
            memset(edge[1], Zero, Rows);
            odd = edge[1];
        } else if (rows < Rows) {
            memcpy(edge[1], odd, static_cast<size_t>(rows));
            odd = edge[1];
        }
        interleave<Rows>(out + k * Rows, even, odd);
    }
}

/* Pack one panel. `in` points at its first code; `rows` of it and `depth` steps of k exist. */
template <typename Format, Order O, int Rows, int Pair, typename Element>
void pack_panel(Element* out, uint8_t* scratch, const uint8_t* in, int64_t stride, int64_t rows, int depth) {
    if (O == Order::kContiguousK) {
        gather_contiguous_k<Rows, Pair, Format::kZeroCode>(scratch, in, stride, rows, depth);
    } else {
        gather_contiguous_rows<Rows, Pair, Format::kZeroCode>(scratch, in, stride, rows, depth);
    }
    const int codes = (depth + Pair - 1) / Pair * Pair * Rows;
    Decoder<Format>::run(out, scratch, codes);
}

}  // namespace gemmill
