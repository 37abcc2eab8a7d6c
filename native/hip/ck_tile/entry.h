/* How a Composable Kernel instance is started: its struct Entry, see hip/entry.h.
 *
 * A kernel is several functions there, by whether its main loop runs and by what is left after it; make_plan() chooses.
 * An int4 A is permuted into the workspace first, in the same stream. */
#pragma once

#include "hip/args.h"
#include "hip/ck_tile/plan.h"
#include "hip/ck_tile/rows.h"
#include "hip/driver.h"
#include "host/arguments.h"

namespace gemmill {

inline int expect_multiple(const char* name, int64_t value, int64_t of, const char* why) {
    if (value % of == 0) return GEMMILL_OK;
    return (Message() << name << " = " << value << ": expected a multiple of " << of << ", " << why).unsupported();
}

inline int expect_aligned(const char* name, const void* pointer) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return GEMMILL_OK;
    return (Message() << name << ": expected an address that is a multiple of 16").bad_argument();
}

struct Entry {
    hipFunction_t instances[Kernel::kInstanceCount];
    hipFunction_t zero, permute;

    int find(hipModule_t module) {
        for (int i = 0; i < Kernel::kInstanceCount; ++i)
            GEMMILL_HIP(hipModuleGetFunction, &instances[i], module, Kernel::kInstances[i]);
        GEMMILL_HIP(hipModuleGetFunction, &zero, module, Kernel::kZero);
        if (Kernel::kPackedA) GEMMILL_HIP(hipModuleGetFunction, &permute, module, Kernel::kPermute);
        return GEMMILL_OK;
    }

    static int check(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc) {
        int code = expect_at_most("M", m, hip::kMaxSize);
        if (!code) code = expect_at_most("N", n, hip::kMaxSize);
        if (!code) code = expect_at_most("K", k, hip::kMaxSize);
        if (code || k == 0) return code;
        code = expect_multiple("K", k, Kernel::kMultipleK, "Composable Kernel does not pad k here");
        if (!code) code = expect_multiple("N", n, Kernel::kMultipleN, "the vector that Composable Kernel stores C by");
        if (!code && Kernel::kExcludedK && k % Kernel::kExcludedK == 0) {
            return (Message() << "K = " << k << ": expected no multiple of " << Kernel::kExcludedK << ", "
                              << Kernel::kWhyExcludedK)
                .unsupported();
        }
        const int64_t b = Kernel::kPreshuffled ? Kernel::kTileK / kGroupK : 0;
        if (!code) code = expect_multiple("lda", lda, Kernel::kPackedA ? 32 : 16, "for vector loads");
        if (!code) code = expect_multiple("ldb", ldb, 16, "for vector loads");
        if (!code) code = expect_multiple("ldc", ldc, Kernel::kMultipleN, "for vector stores");
        // Of a preshuffled AQ, ldaq is the packed row of (M, QK) in the host entry, and of (T, M * b) in the other.
        if (!code && b && ldaq != m * b && ldaq != ceil_div(k, kGroupK))
            code = (Message() << "ldaq = " << ldaq << ": expected M * " << b << ", tiles without gaps").unsupported();
        if (!code) code = expect_multiple("ldaq", ldaq, b ? 1 : 2, "for vector loads");
        // Composable Kernel computes offsets in 32 bits.
        if (!code) code = expect_at_most("M * lda", m * lda, INT32_MAX);
        if (!code) code = expect_at_most("N * ldb", n * ldb, INT32_MAX);
        if (!code) code = expect_at_most("M * ldc", m * ldc * Kernel::kOutBytes, INT32_MAX);
        return code;
    }

    static int64_t workspace_bytes(int64_t m, int64_t, int64_t k) {
        return Kernel::kPackedA ? m * ceil_div(k, 2) : 0;
    }

    int launch(hip::GemmArgs args, void* workspace, hipStream_t stream) const {
        if (args.k == 0) return zero_c(args, stream);
        int code = expect_aligned("A", args.a);
        if (!code) code = expect_aligned("AQ", args.aq);
        if (!code) code = expect_aligned("B", args.b);
        if (!code) code = expect_aligned("C", args.c);
        if (!code && Kernel::kPackedA) code = permute_a(args, workspace, stream);
        if (code) return code;
        hip::ck::Plan plan = {};
        const char* const reason = hip::ck::make_plan(args, plan);
        if (reason) return (Message() << Kernel::kName << ": " << reason).unsupported();
        return start(instances[plan.instance], plan.grid, plan.threads, plan.arguments, stream);
    }

  private:
    static int start(hipFunction_t function, const unsigned (&grid)[3], unsigned threads, void* arguments,
                     hipStream_t stream) {
        void* parameters[] = {arguments};
        GEMMILL_HIP(hipModuleLaunchKernel, function, grid[0], grid[1], grid[2], threads, 1, 1, 0, stream, parameters,
                    nullptr);
        return GEMMILL_OK;
    }

    static int start(hipFunction_t function, hip::ck::Rows rows, hipStream_t stream) {
        const unsigned blocks = static_cast<unsigned>(min_of<int64_t>(rows.count, hip::ck::kMaxBlocks));
        return start(function, {blocks, 1, 1}, hip::ck::kThreads, &rows, stream);
    }

    int zero_c(const hip::GemmArgs& args, hipStream_t stream) const {
        constexpr int64_t units = Kernel::kOutBytes / 2;
        return start(zero, {nullptr, args.c, args.m, args.n * units, 0, args.ldc * units}, stream);
    }

    /* Words of eight elements; the copy is packed. */
    int permute_a(hip::GemmArgs& args, void* workspace, hipStream_t stream) const {
        const int64_t words = args.k / 8;
        const int code = start(permute, {args.a, workspace, args.m, words, args.lda / 8, words}, stream);
        args.a = workspace, args.lda = args.k;
        return code;
    }
};

}  // namespace gemmill
