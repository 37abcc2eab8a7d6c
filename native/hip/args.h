/* What a launch passes to a kernel; one struct for the device, the host shim and the simulator. */
#pragma once

namespace gemmill::hip {

struct GemmArgs {
    const void* a;
    const void* aq;
    const void* b;
    void* c;
    long long lda, ldaq, ldb, ldc;  // elements; ldaq of a preshuffled AQ: distance between two tiles
    int m, n, k;                    // each at most kMaxSize; their products have 64 bits
};

constexpr int kMaxSize = (1 << 30);

/* Block x is a tile of rows; block y is a tile of columns, and strides over the rest of them. The limits keep the
 * threads of a dimension below 2^32, and y where every driver takes it. */
constexpr int kMaxGridX = 1 << 23;
constexpr int kMaxGridY = 65535;

}  // namespace gemmill::hip
