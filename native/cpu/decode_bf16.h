/* Codes to bfloat16 with AVX-512 VBMI: a permute of 128 table bytes per result byte.
 *
 * The permute ignores an index's top bit, which is the code's sign; the sign is put back afterwards. All
 * encodings share the code, only the table differs.
 */
#pragma once

#include "cpu/intrinsics.h"

#include "cpu/fp8.h"

namespace gemmill {

using Element = uint16_t; /* bfloat16 bits */
constexpr int kDecodeStep = 64;
constexpr bool kDecodesInRegisters = false;

/* Low and high bytes of the bfloat16 values of codes 0 to 127. */
struct Bf16Table {
    alignas(kCacheLine) uint8_t low[128];
    alignas(kCacheLine) uint8_t high[128];
};

template <typename Format>
struct Bf16Code {
    static constexpr bool kSigned = true;
    static constexpr bool kNegativeZeroIsNan = Format::kNan == Nan::kNegativeZero;
    static constexpr uint32_t float_bits(uint32_t code) { return fp8_float_bits<Format>(code); }
};

template <typename Format>
constexpr Bf16Table make_bf16_table() {
    Bf16Table table{};
    for (uint32_t code = 0; code < 128; ++code) {
        const uint32_t bits = Bf16Code<Format>::float_bits(code);
        table.low[code] = static_cast<uint8_t>(bits >> 16);
        table.high[code] = static_cast<uint8_t>(bits >> 24);
    }
    return table;
}

template <typename Format>
inline constexpr Bf16Table kBf16Table = make_bf16_table<Format>();

template <typename Format>
struct Decoder {
    static void run(uint16_t* __restrict out, const uint8_t* __restrict codes, int count) {
        using Code = Bf16Code<Format>;
        const Bf16Table& table = kBf16Table<Format>;
        const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
        const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
        /* Interleaving works inside 128-bit lanes; with the quadwords dealt out first, results come in order. */
        const __m512i deal = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
        for (int i = 0; i < count; i += 64) {
            const __m512i code = _mm512_permutexvar_epi64(deal, _mm512_loadu_si512(codes + i));
            __m512i low = _mm512_permutex2var_epi8(low0, code, low1);
            __m512i high = _mm512_permutex2var_epi8(high0, code, high1);
            if (Code::kSigned) { /* high | (code & 0x80) */
                high = _mm512_ternarylogic_epi32(high, code, _mm512_set1_epi8(-128), 0xf8);
            }
            if (Code::kNegativeZeroIsNan) {
                const __mmask64 is_nan = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(-128));
                low = _mm512_mask_mov_epi8(low, is_nan, _mm512_set1_epi8(-64));
                high = _mm512_mask_mov_epi8(high, is_nan, _mm512_set1_epi8(127));
            }
            _mm512_storeu_si512(out + i, _mm512_unpacklo_epi8(low, high));
            _mm512_storeu_si512(out + i + 32, _mm512_unpackhi_epi8(low, high));
        }
    }
};

}  // namespace gemmill
