/* The C ABI of native/abi.h over a code object.
 *
 * The including source has defined struct Kernel, which says what the kernel is, and struct Entry, which says how it is
 * started: hip/entry.h for gemmill's own kernels, and there stands what an Entry offers. */
#pragma once

#include <pthread.h>
#include <stdlib.h>

#include "abi.h"
#include "host/arguments.h"
#include "host/preshuffle.h"
#include "hip/driver.h"

#ifdef __ASSEMBLER__ /* never: it is assembled by itself, but named here so that a kernel's key covers it */
#include "hip/image.S"
#endif

/* The linked code object (image.S). */
extern "C" __attribute__((visibility("hidden"))) const unsigned char gemmill_code_object[];

namespace gemmill {

constexpr Storage kStorage = {Kernel::kOrderA == Order::kContiguousRows, Kernel::kScalesColumnMajor,
                              Kernel::kOrderB == Order::kContiguousK, Kernel::kPreshuffled ? Kernel::kTileK / kGroupK : 0};
constexpr int kMaxDevices = 64;
constexpr int kTimedLaunches = 10;

/* What is loaded on each device; a launch reads `entry` without the lock once `ready` is set. */
struct Loaded {
    hipModule_t module;
    Entry entry;
    bool ready;
};

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
Loaded g_loaded[kMaxDevices];

/* gfx942:sramecc+:xnack- is gfx942, and gfx9420 is not. */
inline bool is_arch(const char* live, const char* wanted) {
    const size_t length = strlen(wanted);
    return strncmp(live, wanted, length) == 0 && (live[length] == '\0' || live[length] == ':');
}

inline int load(int device, Loaded& loaded) {
    hipDeviceProp_tR0600 properties = {};
    GEMMILL_HIP(hipGetDevicePropertiesR0600, &properties, device);
    properties.gcnArchName[sizeof properties.gcnArchName - 1] = '\0';
    if (!is_arch(properties.gcnArchName, Kernel::kArch)) {
        return (Message() << Kernel::kName << " is for " << Kernel::kArch << ", but device " << device << " is "
                          << properties.gcnArchName)
            .unsupported();
    }
    GEMMILL_HIP(hipModuleLoadData, &loaded.module, gemmill_code_object);
    const int code = loaded.entry.find(loaded.module);
    if (code == GEMMILL_OK) return GEMMILL_OK;
    driver().hipModuleUnload(loaded.module);
    loaded = {};
    return code;
}

/* The kernel on the current device, loaded if it is not yet. */
inline int current_entry(const Entry*& entry) {
    int code = open_driver();
    if (code) return code;
    int device = 0;
    GEMMILL_HIP(hipGetDevice, &device);
    if (device < 0 || device >= kMaxDevices) {
        return (Message() << "device " << device << ": expected one below " << kMaxDevices).unsupported();
    }
    Loaded& loaded = g_loaded[device];
    entry = &loaded.entry;
    if (__atomic_load_n(&loaded.ready, __ATOMIC_ACQUIRE)) return GEMMILL_OK;
    pthread_mutex_lock(&g_mutex);
    if (!loaded.ready) {
        Loaded fresh = {};
        code = load(device, fresh);
        if (code == GEMMILL_OK) {
            loaded.module = fresh.module;
            loaded.entry = fresh.entry;
            __atomic_store_n(&loaded.ready, true, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&g_mutex);
    return code;
}

/* What a launch passes on of a problem that the entry has checked: sizes fit in 32 bits. */
inline hip::GemmArgs make_args(const Problem& p) {
    hip::GemmArgs args = {};
    args.a = p.a, args.aq = p.aq, args.b = p.b, args.c = p.c;
    args.m = static_cast<int>(p.m), args.n = static_cast<int>(p.n), args.k = static_cast<int>(p.k);
    args.lda = p.lda, args.ldaq = p.ldaq, args.ldb = p.ldb, args.ldc = p.ldc;
    return args;
}

inline int check_entry(const Problem& p) { return Entry::check(p.m, p.n, p.k, p.lda, p.ldaq, p.ldb, p.ldc); }

/* ---- Host pointers -------------------------------------------------------------------------------------- */

/* Device memory of one call; given back when the call ends, however it ends. */
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(); }

    int allocate(int64_t bytes) {
        if (bytes) GEMMILL_HIP(hipMalloc, &pointer_, static_cast<size_t>(bytes));
        return GEMMILL_OK;
    }
    int upload(const void* from, int64_t bytes) {
        const int code = allocate(bytes);
        if (code) return code;
        if (bytes) GEMMILL_HIP(hipMemcpy, pointer_, from, static_cast<size_t>(bytes), hipMemcpyHostToDevice);
        return GEMMILL_OK;
    }
    int download(void* to, int64_t bytes) {
        GEMMILL_HIP(hipMemcpy, to, pointer_, static_cast<size_t>(bytes), hipMemcpyDeviceToHost);
        return GEMMILL_OK;
    }
    int release() {
        void* const pointer = pointer_;
        pointer_ = nullptr;
        if (pointer) GEMMILL_HIP(hipFree, pointer);
        return GEMMILL_OK;
    }
    void* get() const { return pointer_; }

  private:
    void* pointer_ = nullptr;
};

class Event {
  public:
    Event() = default;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        if (event_) driver().hipEventDestroy(event_);
    }
    int create() {
        GEMMILL_HIP(hipEventCreate, &event_);
        return GEMMILL_OK;
    }
    hipEvent_t get() const { return event_; }

  private:
    hipEvent_t event_ = nullptr;
};

/* Mean time of a launch. The caller has warmed up. */
inline int time_launches(const Entry& entry, const hip::GemmArgs& args, void* workspace, float* time_ms) {
    Event start, stop;
    int code = start.create();
    if (!code) code = stop.create();
    if (code) return code;
    GEMMILL_HIP(hipEventRecord, start.get(), nullptr);
    for (int i = 0; i < kTimedLaunches; ++i) {
        code = entry.launch(args, workspace, nullptr);
        if (code) return code;
    }
    GEMMILL_HIP(hipEventRecord, stop.get(), nullptr);
    GEMMILL_HIP(hipEventSynchronize, stop.get());
    float total = 0;
    GEMMILL_HIP(hipEventElapsedTime, &total, start.get(), stop.get());
    *time_ms = total / kTimedLaunches;
    return GEMMILL_OK;
}

/* AQ as this kernel reads it, on the device; `ldaq` follows. */
inline int upload_scales(Buffer& buffer, const Problem& p, int64_t& ldaq) {
    const Shape shape = stored_shapes(kStorage, p.m, p.n, p.k).aq;
    const int64_t bytes = shape.lines * shape.length * Kernel::kScaleBytes;
    ldaq = shape.length;
    if (!Kernel::kPreshuffled) return buffer.upload(p.aq, bytes);
    char* const shuffled = static_cast<char*>(malloc(static_cast<size_t>(bytes) + 1));
    if (!shuffled) return (Message() << "out of memory: preshuffled AQ of " << bytes << " bytes").device_error();
    preshuffle(shuffled, static_cast<const char*>(p.aq), p.m, ceil_div(p.k, kGroupK), kStorage.shuffled_groups,
               Kernel::kScaleBytes);
    const int code = buffer.upload(shuffled, bytes);
    free(shuffled);
    return code;
}

inline int run_on_device(const Problem& p, float* time_ms) {
    const Entry* entry = nullptr;
    int code = current_entry(entry);
    if (code) return code;
    hip::GemmArgs args = make_args(p);
    const int64_t bytes_c = p.m * p.n * Kernel::kOutBytes;
    int64_t ldaq = 0;
    Buffer a, aq, b, c, workspace;
    code = a.upload(p.a, Kernel::kPackedA ? ceil_div(p.m * p.k, 2) : p.m * p.k);
    if (!code) code = upload_scales(aq, p, ldaq);
    if (!code) code = b.upload(p.b, p.k * p.n);
    if (!code) code = c.allocate(bytes_c);
    if (!code) code = workspace.allocate(Entry::workspace_bytes(p.m, p.n, p.k));
    if (code) return code;
    args.a = a.get(), args.aq = aq.get(), args.b = b.get(), args.c = c.get(), args.ldaq = ldaq;
    code = entry->launch(args, workspace.get(), nullptr);
    if (code) return code;
    GEMMILL_HIP(hipStreamSynchronize, nullptr); /* the default stream */
    if (time_ms) code = time_launches(*entry, args, workspace.get(), time_ms);
    if (!code) code = c.download(p.c, bytes_c);
    /* Here, not in destructors: a failing hipFree is the device's failure too. */
    Buffer* const buffers[] = {&workspace, &c, &b, &aq, &a};
    for (Buffer* buffer : buffers) {
        const int released = buffer->release();
        if (!code) code = released;
    }
    return code;
}

inline int run_packed(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N, int64_t K,
                      int64_t stride_A, int64_t stride_AQ, int64_t stride_B, int64_t stride_C, int64_t QK_A,
                      int k_batch, float* time_ms) {
    const Problem p = make_problem(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C);
    int code = check_packed(kStorage, p, QK_A, k_batch);
    if (code) return code;
    if (time_ms) *time_ms = 0;
    if (M == 0 || N == 0) return GEMMILL_OK;
    code = check_entry(p);
    return code ? code : run_on_device(p, time_ms);
}

/* ---- Device pointers ------------------------------------------------------------------------------------ */

inline int run_strided(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N, int64_t K,
                       int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc, void* workspace, int64_t workspace_bytes,
                       void* stream) {
    const Problem p = make_problem(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc);
    int code = check_strided(kStorage, p);
    if (code || M == 0 || N == 0) return code;
    code = check_entry(p);
    const int64_t needed = code ? 0 : Entry::workspace_bytes(M, N, K);
    if (!code) code = expect_pointer("workspace", workspace, needed > 0);
    if (!code && needed > 0) code = expect_at_least("workspace_bytes", workspace_bytes, needed);
    const Entry* entry = nullptr;
    if (!code) code = current_entry(entry);
    if (code) return code;
    return entry->launch(make_args(p), workspace, static_cast<hipStream_t>(stream));
}

inline int run_call(const GemmillCall& c) {
    const int code = open_driver();
    if (code) return code;
    int current = 0;
    GEMMILL_HIP(hipGetDevice, &current);
    if (c.device != current)
        return (Message() << "device = " << c.device << ": expected " << current << ", the current one").bad_argument();
    return run_strided(c.A, c.AQ, c.B, c.C, c.M, c.N, c.K, c.lda, c.ldaq, c.ldb, c.ldc, c.workspace, c.workspace_bytes,
                       c.stream);
}

/* ---- Life ----------------------------------------------------------------------------------------------- */

inline int initialize() {
    const Entry* entry = nullptr;
    return current_entry(entry);
}

/* The driver stays open: unloading it while other libraries use it is nobody's wish. */
inline void cleanup() {
    pthread_mutex_lock(&g_mutex);
    for (Loaded& loaded : g_loaded) {
        if (loaded.module) driver().hipModuleUnload(loaded.module);
        __atomic_store_n(&loaded.ready, false, __ATOMIC_RELEASE);
        loaded.module = nullptr;
    }
    pthread_mutex_unlock(&g_mutex);
}

}  // namespace gemmill

extern "C" {

GEMMILL_EXPORT int dispatcher_initialize(void) { return gemmill::initialize(); }

GEMMILL_EXPORT int dispatcher_run_aquant_gemm(const void* A, const void* AQ, const void* B, void* C, int64_t M,
                                              int64_t N, int64_t K, int64_t stride_A, int64_t stride_AQ,
                                              int64_t stride_B, int64_t stride_C, int64_t QK_A, int k_batch,
                                              float* time_ms) {
    return gemmill::run_packed(A, AQ, B, C, M, N, K, stride_A, stride_AQ, stride_B, stride_C, QK_A, k_batch, time_ms);
}

GEMMILL_EXPORT const char* dispatcher_get_kernel_name(void) { return gemmill::Kernel::kName; }

GEMMILL_EXPORT int dispatcher_get_kernel_count(void) { return 1; }

GEMMILL_EXPORT void dispatcher_cleanup(void) { gemmill::cleanup(); }

GEMMILL_EXPORT int gemmill_abi_version(void) { return GEMMILL_ABI_VERSION; }

GEMMILL_EXPORT const char* gemmill_manifest(void) { return gemmill::Kernel::kManifest; }

GEMMILL_EXPORT const char* gemmill_last_error(void) { return gemmill::t_error.text; }

GEMMILL_EXPORT int64_t gemmill_workspace_bytes(int64_t M, int64_t N, int64_t K) {
    const int code = gemmill::check_sizes(M, N, K);
    return code ? code : gemmill::Entry::workspace_bytes(M, N, K);
}

GEMMILL_EXPORT int gemmill_gemm_aquant(const void* A, const void* AQ, const void* B, void* C, int64_t M, int64_t N,
                                       int64_t K, int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc,
                                       void* workspace, int64_t workspace_bytes, void* stream) {
    return gemmill::run_strided(A, AQ, B, C, M, N, K, lda, ldaq, ldb, ldc, workspace, workspace_bytes, stream);
}

GEMMILL_EXPORT int gemmill_launch(const GemmillCall* call) {
    if (const int code = gemmill::expect_call(call)) return code;
    return gemmill::run_call(*call);
}

}  // extern "C"
