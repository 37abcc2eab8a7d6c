/* int4 codes to float32. Plain enough for every compiler to vectorise. */
#pragma once

#include "cpu/int4.h"

namespace gemmill {

template <typename Format>
struct Decoder;

template <>
struct Decoder<Int4> {
    static void run(float* __restrict out, const uint8_t* __restrict codes, int count) {
        for (int i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int>(codes[i]) - 8);
    }
};

}  // namespace gemmill
