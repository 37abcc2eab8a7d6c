/* The C ABI of native/abi.h for the struct Kernel that the including source defines. */
#pragma once

#include <time.h>

#include "abi.h"
#include "host/arguments.h"
#include "cpu/cpu_features.h"
#include "cpu/schedule.h"

namespace gemmill {

Pool g_pool(Workspace<Kernel>::kBytes);
bool g_fork_handlers = false;

void before_fork() { g_pool.before_fork(); }
void after_fork_parent() { g_pool.after_fork_parent(); }
void after_fork_child() { g_pool.after_fork_child(); }

/* The threads' code goes away with the library, so they end before it. */
GEMMILL_BASELINE __attribute__((destructor)) void close_at_unload() { g_pool.close(); }

bool g_cpu_checked = false; /* CPUID is slow on a virtual machine: tens of microseconds */

GEMMILL_BASELINE int check_cpu() {
    if (__atomic_load_n(&g_cpu_checked, __ATOMIC_RELAXED)) return GEMMILL_OK;
    const char* missing = missing_cpu_feature();
    if (missing == nullptr) {
        __atomic_store_n(&g_cpu_checked, true, __ATOMIC_RELAXED);
        return GEMMILL_OK;
    }
    return (Message() << Kernel::kName << " for " << Kernel::kArch << " needs a CPU feature that this machine lacks: "
                      << missing)
        .unsupported();
}

/* Make the library ready and count this call as running; g_pool.leave() must follow success. */
__attribute__((noinline)) int enter() {
    if (!__atomic_exchange_n(&g_fork_handlers, true, __ATOMIC_ACQ_REL)) {
        if (pthread_atfork(before_fork, after_fork_parent, after_fork_child) != 0) {
            __atomic_store_n(&g_fork_handlers, false, __ATOMIC_RELEASE);
            return (Message() << "out of memory: pthread_atfork").device_error();
        }
    }
    return g_pool.enter();
}

constexpr Storage kStorage = {Kernel::kOrderA == Order::kContiguousRows, Kernel::ScaleLayout::kColumnMajor,
                              Kernel::kOrderB == Order::kContiguousK, Kernel::ScaleLayout::kShuffledGroups};

/* The product, for checked arguments. */
void compute(const Problem& p) {
    if (p.m == 0 || p.n == 0) return;
    multiply<Kernel>(g_pool, p);
}

double now_ms() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

/* Mean time of a call: at least 3 repeats, then until 20 ms have passed. The caller has warmed up. */
float time_compute(const Problem& p) {
    const double start = now_ms();
    double elapsed = 0;
    int repeats = 0;
    while (repeats < 3 || (elapsed < 20 && repeats < 1000)) {
        compute(p);
        ++repeats;
        elapsed = now_ms() - start;
    }
    return static_cast<float>(elapsed / repeats);
}

__attribute__((noinline)) int run_packed(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N,
                                         int64_t K, int64_t stride_A, int64_t stride_AQ, int64_t stride_B,
                                         int64_t stride_C, int64_t QK_A, int k_batch, float* time_ms) {
    Problem p = make_problem(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C);
    int code = check_packed(kStorage, p, QK_A, k_batch);
    if (code) return code;
    if (M == 0 || N == 0) { /* nothing to write, and AQ may be NULL */
        if (time_ms) *time_ms = 0;
        return GEMMILL_OK;
    }
    code = enter();
    if (code) return code;
    void* owned = nullptr;
    if (!Kernel::ScaleLayout::prepare(p, kScaleBytes<Kernel::Scale>, &owned)) {
        g_pool.leave();
        return (Message() << "out of memory: a preshuffled copy of AQ, " << M << " x " << QK_A << " values").device_error();
    }
    compute(p);
    if (time_ms) *time_ms = time_compute(p);
    free(owned);
    g_pool.leave();
    return GEMMILL_OK;
}

__attribute__((noinline)) int run_strided(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N,
                                          int64_t K, int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc,
                                          void* stream) {
    const Problem p = make_problem(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc);
    int code = check_strided(kStorage, p);
    if (code) return code;
    if (stream) return (Message() << "stream: expected NULL, the cpu backend has no streams").unsupported();
    code = enter();
    if (code) return code;
    compute(p);
    g_pool.leave();
    return GEMMILL_OK;
}

__attribute__((noinline)) int initialize() {
    const int code = enter();
    if (code == GEMMILL_OK) g_pool.leave();
    return code;
}

}  // namespace gemmill

/* The exported functions look at the CPU before anything compiled for the kernel's arch runs. */
extern "C" {

GEMMILL_BASELINE GEMMILL_EXPORT int dispatcher_initialize(void) {
    const int code = gemmill::check_cpu();
    return code ? code : gemmill::initialize();
}

GEMMILL_BASELINE GEMMILL_EXPORT int dispatcher_run_aquant_gemm(const void* A, const void* AQ, const void* B, void* C,
                                                               int64_t M, int64_t N, int64_t K, int64_t stride_A,
                                                               int64_t stride_AQ, int64_t stride_B, int64_t stride_C,
                                                               int64_t QK_A, int k_batch, float* time_ms) {
    const int code = gemmill::check_cpu();
    if (code) return code;
    return gemmill::run_packed(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C, QK_A, k_batch, time_ms);
}

GEMMILL_BASELINE GEMMILL_EXPORT const char* dispatcher_get_kernel_name(void) { return gemmill::Kernel::kName; }

GEMMILL_BASELINE GEMMILL_EXPORT int dispatcher_get_kernel_count(void) { return 1; }

GEMMILL_BASELINE GEMMILL_EXPORT void dispatcher_cleanup(void) { gemmill::g_pool.close(); }

GEMMILL_BASELINE GEMMILL_EXPORT int gemmill_abi_version(void) { return GEMMILL_ABI_VERSION; }

GEMMILL_BASELINE GEMMILL_EXPORT const char* gemmill_manifest(void) { return gemmill::Kernel::kManifest; }

GEMMILL_BASELINE GEMMILL_EXPORT const char* gemmill_last_error(void) { return gemmill::t_error.text; }

GEMMILL_BASELINE GEMMILL_EXPORT int64_t gemmill_workspace_bytes(int64_t M, int64_t N, int64_t K) {
    const int code = gemmill::check_cpu();
    return code ? code : gemmill::check_sizes(M, N, K);
}

GEMMILL_BASELINE GEMMILL_EXPORT int gemmill_gemm_aquant(const void* A, const void* AQ, const void* B, void* C,
                                                        int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldaq,
                                                        int64_t ldb, int64_t ldc, void* workspace,
                                                        int64_t workspace_bytes, void* stream) {
    (void)workspace, (void)workspace_bytes; /* gemmill_workspace_bytes() is 0 */
    const int code = gemmill::check_cpu();
    if (code) return code;
    return gemmill::run_strided(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc, stream);
}

GEMMILL_BASELINE GEMMILL_EXPORT int gemmill_launch(const GemmillCall* call) {
    if (const int code = gemmill::expect_call(call)) return code;
    return gemmill_gemm_aquant(call->A, call->AQ, call->B, call->C, call->M, call->N, call->K, call->lda, call->ldaq,
                               call->ldb, call->ldc, call->workspace, call->workspace_bytes, call->stream);
}

}  // extern "C"
