/* How a kernel is started: struct Entry of gemmill's own kernels, which have one function and need no workspace. */
#pragma once

#include "host/base.h"
#include "hip/args.h"
#include "hip/driver.h"

namespace gemmill {

struct Entry {
    hipFunction_t function;

    /* Look up what is needed in a loaded module. */
    int find(hipModule_t module) {
        GEMMILL_HIP(hipModuleGetFunction, &function, module, Kernel::kName);
        return GEMMILL_OK;
    }

    /* Refuse a well-formed problem that this kernel can't do; the message says why. */
    static int check(const hip::GemmArgs& args) {
        const int64_t most = static_cast<int64_t>(hip::kMaxGridX) * Kernel::kTileM;
        if (args.m <= most) return GEMMILL_OK;
        return (Message() << "M = " << args.m << ": expected at most " << most << ", the largest grid").unsupported();
    }

    static int64_t workspace_bytes(int64_t, int64_t, int64_t) { return 0; }

    /* Start a checked problem; allocates nothing. */
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
