/* The C ABI of native/abi.h for the struct Kernel that the including source defines. */
#pragma once

#include <stdlib.h>

#include "abi.h"
#include "host/arguments.h"
#include "host/preshuffle.h"
#include "cuda/launch.h"

/* The compiled device code, kernel.cubin in the directory of the build, put into this library by the assembler. */
asm(".section .rodata\n"
    ".balign 64\n"
    ".type gemmill_cubin, @object\n"
    "gemmill_cubin:\n"
    ".incbin \"kernel.cubin\"\n"
    ".size gemmill_cubin, . - gemmill_cubin\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char gemmill_cubin[];

namespace gemmill {

template <int n>
struct Launches {
    uint32_t rows[n][2];
};
template <typename C>
constexpr auto launches() {
    using F = Traits<C>;
    using S = Traits<Scalar<C>>;
    if constexpr (C::converts) {
        using P = Traits<Plain<C>>;
        return Launches<4>{{{F::threads, F::smem_bytes}, {S::threads, S::smem_bytes}, {P::threads, P::smem_bytes}, {kConvertThreads, 0}}};
    } else {
        return Launches<2>{{{F::threads, F::smem_bytes}, {S::threads, S::smem_bytes}}};
    }
}
/* What a launch of gemmill_fast, gemmill_scalar and, where there are such, gemmill_plain and gemmill_convert takes: threads
   and bytes of dynamic shared memory. For the build to read (kernels/backends/cuda.py), from a section of its own, since
   symbols are stripped. */
__attribute__((section(".gemmill.launch"), used)) static const auto kLaunches = launches<Kernel>();

template <typename C>
constexpr int plain_bytes() {
    if constexpr (C::converts) return Traits<Plain<C>>::smem_bytes;
    return 0;
}

constexpr int kScaleBytes = bytes_of(Kernel::aq), kOutBytes = bytes_of(Kernel::out);
constexpr Storage kStorage = {Kernel::a_col, Kernel::aq_col, Kernel::b_col, Kernel::preshuffle};

inline int ready_on(int ordinal, Device& device) {
    return ready_device(gemmill_cubin, Traits<Kernel>::smem_bytes, Traits<Scalar<Kernel>>::smem_bytes, plain_bytes<Kernel>(),
                        ordinal, device);
}

inline int ready(Device& device, int& ordinal) {
    const int code = current_device(ordinal);
    return code ? code : ready_on(ordinal, device);
}

/* ---- Host pointers ---- */

/* Device memory of one call, freed on every way out. */
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;
    ~DeviceBuffer() {
        if (address_) GEMMILL_CU(cuMemFree)(address_);
    }
    int allocate(int64_t bytes) {
        const CUresult result = bytes ? GEMMILL_CU(cuMemAlloc)(&address_, static_cast<size_t>(bytes)) : CUDA_SUCCESS;
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            return (Message() << "out of device memory: " << bytes << " bytes were asked for").device_error();
        return result == CUDA_SUCCESS ? GEMMILL_OK : driver_error("cuMemAlloc", result);
    }
    int upload(const void* host, int64_t bytes) {
        const int code = allocate(bytes);
        if (code || !bytes) return code;
        GEMMILL_TRY(cuMemcpyHtoD, address_, host, static_cast<size_t>(bytes));
        return GEMMILL_OK;
    }
    uint8_t* get() const { return reinterpret_cast<uint8_t*>(address_); }
    CUdeviceptr address() const { return address_; }

  private:
    CUdeviceptr address_ = 0;
};

class Event {
  public:
    Event() = default;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        if (handle) GEMMILL_CU(cuEventDestroy)(handle);
    }
    CUevent handle = nullptr;
};

/* Mean time of a launch over repeats that take about 20 ms; the caller has warmed up. */
inline int time_launches(const Device& device, const Problem& p, void* workspace, float* time_ms) {
    Event start, stop;
    GEMMILL_TRY(cuEventCreate, &start.handle, CU_EVENT_DEFAULT);
    GEMMILL_TRY(cuEventCreate, &stop.handle, CU_EVENT_DEFAULT);
    float total = 0;
    for (int repeats = 3;; repeats *= 4) {
        GEMMILL_TRY(cuEventRecord, start.handle, nullptr);
        for (int i = 0; i < repeats; ++i) {
            const int code = launch<Kernel>(device, p, workspace, nullptr);
            if (code) return code;
        }
        GEMMILL_TRY(cuEventRecord, stop.handle, nullptr);
        GEMMILL_TRY(cuEventSynchronize, stop.handle);
        GEMMILL_TRY(cuEventElapsedTime, &total, start.handle, stop.handle);
        *time_ms = total / static_cast<float>(repeats);
        if (total > 5 || repeats > 1000) return GEMMILL_OK;
    }
}

inline int run_packed(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N, int64_t K, int64_t stride_A,
                      int64_t stride_AQ, int64_t stride_B, int64_t stride_C, int64_t QK_A, int k_batch, float* time_ms) {
    Problem p = make_problem(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C);
    int code = check_packed(kStorage, p, QK_A, k_batch);
    if (!code) code = open_driver();
    ContextScope context;
    int ordinal = 0;
    if (!code) code = first_device(ordinal);
    if (!code) code = context.enter(ordinal);
    Device device;
    if (!code) code = ready(device, ordinal);
    if (code) return code;
    if (time_ms) *time_ms = 0;
    if (M == 0 || N == 0) return GEMMILL_OK;

    struct HostBuffer {
        char* data = nullptr;
        ~HostBuffer() { free(data); }
    } shuffled;
    const Shape stored_aq = stored_shapes(kStorage, M, N, K).aq;
    const int64_t scales = stored_aq.lines * stored_aq.length;
    if (Kernel::preshuffle && K > 0) {
        shuffled.data = static_cast<char*>(malloc(static_cast<size_t>(scales * kScaleBytes)));
        if (!shuffled.data) return (Message() << "out of memory: preshuffled AQ of " << scales << " values").device_error();
        preshuffle(shuffled.data, static_cast<const char*>(AQ), M, QK_A, Kernel::preshuffle, kScaleBytes);
        AQ = shuffled.data;
    }
    DeviceBuffer a, aq, b, c, workspace;
    code = a.upload(A, Kernel::a == Elem::i4 ? ceil_div(M * K, 2) : M * K);
    if (!code) code = aq.upload(AQ, K > 0 ? scales * kScaleBytes : 0);
    if (!code) code = b.upload(B, K * N);
    if (!code) code = c.allocate(M * N * kOutBytes);
    if (code) return code;
    p = make_problem(a.get(), aq.get(), b.get(), c.get(), M, N, K, stride_A, stored_aq.length, stride_B, stride_C);
    if (workspace.allocate(workspace_bytes<Kernel>(M, N, K))) Message(); /* slower without it, not wrong: nothing to tell */
    code = launch<Kernel>(device, p, workspace.get(), nullptr);
    if (code) return code;
    GEMMILL_TRY(cuStreamSynchronize, nullptr);
    GEMMILL_TRY(cuMemcpyDtoH, C, c.address(), static_cast<size_t>(M * N * kOutBytes));
    return time_ms ? time_launches(device, p, workspace.get(), time_ms) : GEMMILL_OK;
}

/* ---- Device pointers ---- */

/* `known`: the device that the pointers are memory of, from a caller who knows; else the driver is asked. */
inline int run_strided(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N, int64_t K, int64_t lda,
                       int64_t ldaq, int64_t ldb, int64_t ldc, void* workspace, int64_t bytes, void* stream,
                       const int64_t* known) {
    const Problem p = make_problem(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc);
    int code = check_strided(kStorage, p);
    if (!code) code = expect_aligned("C", C, kOutBytes);
    if (!code) code = expect_aligned("AQ", AQ, kScaleBytes);
    const int64_t needed = code ? 0 : workspace_bytes<Kernel>(M, N, K);
    if (!needed) workspace = nullptr;
    if (workspace && !code) code = expect_at_least("workspace_bytes", bytes, needed);
    if (workspace && !code && reinterpret_cast<uintptr_t>(workspace) % kCopyAlignment)
        code = (Message() << "workspace: expected an address that is a multiple of " << kCopyAlignment << " bytes").bad_argument();
    if (!code) code = open_driver();
    ContextScope context;
    int ordinal = 0;
    if (!code) code = known ? context.enter_device(*known) : context.enter(0);
    Device device;
    if (!code) code = known ? ready_on(static_cast<int>(*known), device) : ready(device, ordinal);
    const bool ask = !known && M > 0 && N > 0;
    if (!code) code = expect_device_pointer("A", A, ordinal, ask && K > 0);
    if (!code) code = expect_device_pointer("AQ", AQ, ordinal, ask && K > 0);
    if (!code) code = expect_device_pointer("B", B, ordinal, ask && K > 0);
    if (!code) code = expect_device_pointer("C", C, ordinal, ask);
    if (!code) code = expect_device_pointer("workspace", workspace, ordinal, !known && workspace);
    if (code) return code;
    return launch<Kernel>(device, p, workspace, static_cast<CUstream>(stream));
}

inline int initialize() {
    int code = open_driver();
    ContextScope context;
    Device device;
    int ordinal = 0;
    if (!code) code = first_device(ordinal);
    if (!code) code = context.enter(ordinal);
    return code ? code : ready(device, ordinal);
}

}  // namespace gemmill

extern "C" {

GEMMILL_EXPORT int dispatcher_initialize(void) { return gemmill::initialize(); }

GEMMILL_EXPORT int dispatcher_run_aquant_gemm(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N,
                                              int64_t K, int64_t stride_A, int64_t stride_AQ, int64_t stride_B, int64_t stride_C,
                                              int64_t QK_A, int k_batch, float* time_ms) {
    return gemmill::run_packed(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C, QK_A, k_batch, time_ms);
}

GEMMILL_EXPORT const char* dispatcher_get_kernel_name(void) { return gemmill::Kernel::kName; }

GEMMILL_EXPORT int dispatcher_get_kernel_count(void) { return 1; }

GEMMILL_EXPORT void dispatcher_cleanup(void) { gemmill::unload_library(); }

GEMMILL_EXPORT int gemmill_abi_version(void) { return GEMMILL_ABI_VERSION; }

GEMMILL_EXPORT const char* gemmill_manifest(void) { return gemmill::Kernel::kManifest; }

GEMMILL_EXPORT const char* gemmill_last_error(void) { return gemmill::t_error.text; }

GEMMILL_EXPORT int64_t gemmill_workspace_bytes(int64_t M, int64_t N, int64_t K) {
    const int code = gemmill::check_sizes(M, N, K);
    return code ? code : gemmill::workspace_bytes<gemmill::Kernel>(M, N, K);
}

GEMMILL_EXPORT int gemmill_gemm_aquant(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N, int64_t K,
                                       int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc, void* workspace,
                                       int64_t workspace_bytes, void* stream) {
    return gemmill::run_strided(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc, workspace, workspace_bytes, stream, nullptr);
}

GEMMILL_EXPORT int gemmill_launch(const GemmillCall* call) {
    if (const int code = gemmill::expect_call(call)) return code;
    const GemmillCall& c = *call;
    return gemmill::run_strided(c.A, c.AQ, c.B, c.C, c.M, c.N, c.K, c.lda, c.ldaq, c.ldb, c.ldc, c.workspace,
                                c.workspace_bytes, c.stream, &c.device);
}

}  // extern "C"
