/* How a kernel is started: struct Entry of gemmill's own kernels, which are one function and need no workspace. */
#pragma once

#include "hip/args.h"
#include "hip/driver.h"
#include "host/arguments.h"

namespace gemmill {

struct Entry {
    hipFunction_t function;

    /* Look up in a loaded module what a launch needs. */
    int find(hipModule_t module) {
        GEMMILL_HIP(hipModuleGetFunction, &function, module, Kernel::kName);
        return GEMMILL_OK;
    }

    /* Refuse a well-formed problem that the kernel can't do: here, what its 32-bit indices and the grid don't hold. */
    static int check(int64_t m, int64_t n, int64_t k, int64_t, int64_t, int64_t, int64_t) {
        constexpr int64_t grid = static_cast<int64_t>(hip::kMaxGridX) * Kernel::kTileM;
        int code = expect_at_most("M", m, min_of<int64_t>(hip::kMaxSize, grid));
        if (!code) code = expect_at_most("N", n, hip::kMaxSize);
        if (!code) code = expect_at_most("K", k, hip::kMaxSize);
        return code;
    }

    static int64_t workspace_bytes(int64_t, int64_t, int64_t) { return 0; }

    /* Start a checked problem in a stream; allocates nothing. */
    int launch(hip::GemmArgs args, void*, hipStream_t stream) const {
        const int64_t tiles_m = ceil_div(args.m, Kernel::kTileM);
        const int64_t tiles_n = ceil_div(args.n, Kernel::kTileN);
        void* parameters[] = {&args};
        constexpr unsigned threads = 64 * Kernel::kWarpsM * Kernel::kWarpsN;
        GEMMILL_HIP(hipModuleLaunchKernel, function, static_cast<unsigned>(tiles_m),
                    static_cast<unsigned>(min_of<int64_t>(tiles_n, hip::kMaxGridY)), 1, threads, 1, 1, 0, stream,
                    parameters, nullptr);
        return GEMMILL_OK;
    }
};

}  // namespace gemmill
