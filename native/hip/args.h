/* What a launch passes to a kernel; one struct for the device, the host shim and the simulator. */
#ifndef GEMMILL_HIP_ARGS_H
#define GEMMILL_HIP_ARGS_H

struct GemmArgs {
    const void* a;
    const void* aq;
    const void* b;
    void* c;
    long long m, n, k;
    long long lda, ldaq, ldb, ldc; /* elements; ldaq of a preshuffled AQ: distance between two tiles */
};

/* Block x is a tile of rows. Block y is a tile of columns, and strides over the rest of them. */
enum { GEMMILL_MAX_GRID_X = 1 << 23, GEMMILL_MAX_GRID_Y = 65535 };

#endif /* GEMMILL_HIP_ARGS_H */
