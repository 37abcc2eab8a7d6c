/* Codes to float32 by table, for CPUs of which nothing is known. */
#pragma once

#include "cpu/fp8.h"

namespace gemmill {

using Element = float;                     /* what packed tiles hold */
constexpr int kDecodeStep = 16;            /* decode_codes() works in multiples of this many codes */
constexpr bool kDecodesInRegisters = false;

template <typename Format>
struct Decoder {
    static void run(float* __restrict out, const uint8_t* __restrict codes, int count) {
        for (int i = 0; i < count; ++i) out[i] = fp8_to_float<Format>(codes[i]);
    }
};

}  // namespace gemmill
