/* Arguments of the two small kernels in ck_tile/device.h: `count` rows of `length` units. */
#pragma once

namespace gemmill::hip::ck {

struct Rows {
    const void* in;
    void* out;
    long long count, length, ld_in, ld_out;
};

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxBlocks = 65535;  // they stride over the rest of the rows

}  // namespace gemmill::hip::ck
