/* The GPUs that this library may use, and its code on them. */
#pragma once

#include "cuda/driver.h"

namespace gemmill {

/* One device, checked once. The code image is loaded once a process; the driver puts it into each context. */
struct Device {
    bool ready;
    int multiprocessors;
    CUkernel fast, scalar;
    CUkernel plain, convert; /* of kernels that convert operands ahead; NULL elsewhere */
};

constexpr int kMostDevices = 64;

struct Library {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    CUlibrary handle = nullptr;
    CUkernel fast = nullptr, scalar = nullptr, plain = nullptr, convert = nullptr;
    Device devices[kMostDevices] = {};
    CUcontext primary[kMostDevices] = {}; /* retained for callers that have no context */
};

inline Library g_library;

struct LibraryLock {
    LibraryLock() { pthread_mutex_lock(&g_library.mutex); }
    ~LibraryLock() { pthread_mutex_unlock(&g_library.mutex); }
};

inline int check_capability(int ordinal) {
    CUdevice device;
    int major = 0, minor = 0;
    char name[128] = "";
    GEMMILL_TRY(cuDeviceGet, &device, ordinal);
    GEMMILL_TRY(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    GEMMILL_TRY(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (major == 9 && minor == 0) return GEMMILL_OK;
    GEMMILL_TRY(cuDeviceGetName, name, sizeof name, device);
    return (Message() << "device " << ordinal << " (" << name << ") has compute capability " << major << "." << minor
                      << ": this kernel is code for sm_90a, which runs on 9.0 alone")
        .unsupported();
}

inline int load_library(const void* image, bool converts) {
    if (g_library.handle) return GEMMILL_OK;
    CUlibrary handle;
    GEMMILL_TRY(cuLibraryLoadData, &handle, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    CUresult result = GEMMILL_CU(cuLibraryGetKernel)(&g_library.fast, handle, "gemmill_fast");
    if (result == CUDA_SUCCESS) result = GEMMILL_CU(cuLibraryGetKernel)(&g_library.scalar, handle, "gemmill_scalar");
    if (converts && result == CUDA_SUCCESS)
        result = GEMMILL_CU(cuLibraryGetKernel)(&g_library.plain, handle, "gemmill_plain");
    if (converts && result == CUDA_SUCCESS)
        result = GEMMILL_CU(cuLibraryGetKernel)(&g_library.convert, handle, "gemmill_convert");
    if (result != CUDA_SUCCESS) {
        GEMMILL_CU(cuLibraryUnload)(handle);
        return driver_error("cuLibraryGetKernel", result);
    }
    g_library.handle = handle;
    return GEMMILL_OK;
}

inline int expect_counted(int64_t ordinal) {
    if (ordinal >= 0 && ordinal < kMostDevices) return GEMMILL_OK;
    return (Message() << "device " << ordinal << ": expected 0 to " << kMostDevices - 1 << ", more are not counted").unsupported();
}

/* The device of the current context. */
inline int current_device(int& ordinal) {
    CUdevice device;
    GEMMILL_TRY(cuCtxGetDevice, &device);
    ordinal = device;
    return GEMMILL_OK;
}

/* A device, ready to launch on; a context of it is current. Bytes of shared memory; of `plain` none where there is no such
   entry. */
inline int ready_device(const void* image, int fast_bytes, int scalar_bytes, int plain_bytes, int ordinal, Device& out) {
    if (const int code = expect_counted(ordinal)) return code;
    Device& known = g_library.devices[ordinal];
    if (!__atomic_load_n(&known.ready, __ATOMIC_ACQUIRE)) {
        LibraryLock lock;
        int code = check_capability(ordinal);
        if (!code) code = load_library(image, plain_bytes > 0);
        if (code) return code;
        constexpr CUfunction_attribute smem = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        CUdevice device;
        GEMMILL_TRY(cuDeviceGet, &device, ordinal);
        GEMMILL_TRY(cuKernelSetAttribute, smem, fast_bytes, g_library.fast, device);
        GEMMILL_TRY(cuKernelSetAttribute, smem, scalar_bytes, g_library.scalar, device);
        if (plain_bytes) GEMMILL_TRY(cuKernelSetAttribute, smem, plain_bytes, g_library.plain, device);
        GEMMILL_TRY(cuDeviceGetAttribute, &known.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        known.fast = g_library.fast, known.scalar = g_library.scalar;
        known.plain = g_library.plain, known.convert = g_library.convert;
        __atomic_store_n(&known.ready, true, __ATOMIC_RELEASE);
    }
    out = known;
    return GEMMILL_OK;
}

/* Makes a context current where the caller's is none, or another device's, and takes it away again. */
class ContextScope {
  public:
    ContextScope() = default;
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;
    ~ContextScope() {
        CUcontext ignored;
        if (pushed_) GEMMILL_CU(cuCtxPopCurrent)(&ignored);
    }

    /* The caller's context, else a device's primary one. */
    int enter(int ordinal) {
        CUcontext context = nullptr;
        GEMMILL_TRY(cuCtxGetCurrent, &context);
        return context ? GEMMILL_OK : push(ordinal);
    }

    /* The caller's context if it is that device's, else its primary one. */
    int enter_device(int64_t ordinal) {
        CUdevice device;
        const CUresult result = GEMMILL_CU(cuCtxGetDevice)(&device);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT) return driver_error("cuCtxGetDevice", result);
        return result == CUDA_SUCCESS && device == ordinal ? GEMMILL_OK : push(ordinal);
    }

  private:
    int push(int64_t ordinal) {
        if (const int code = expect_counted(ordinal)) return code;
        CUcontext context = nullptr;
        {
            LibraryLock lock;
            CUdevice device;
            GEMMILL_TRY(cuDeviceGet, &device, static_cast<int>(ordinal));
            if (!g_library.primary[ordinal]) GEMMILL_TRY(cuDevicePrimaryCtxRetain, &g_library.primary[ordinal], device);
            context = g_library.primary[ordinal];
        }
        GEMMILL_TRY(cuCtxPushCurrent, context);
        pushed_ = true;
        return GEMMILL_OK;
    }

    bool pushed_ = false;
};

/* The first device that can run the kernel; the text of a failure says what was found. */
inline int first_device(int& ordinal) {
    int count = 0, code = GEMMILL_OK;
    GEMMILL_TRY(cuDeviceGetCount, &count);
    if (count == 0) return (Message() << "no CUDA device: this kernel needs a GPU of compute capability 9.0").unsupported();
    for (ordinal = 0; ordinal < count; ++ordinal) {
        code = check_capability(ordinal);
        if (!code) return GEMMILL_OK;
    }
    return code;
}

/* Give everything back. The caller knows that no other thread is inside the library. */
inline void unload_library() {
    LibraryLock lock;
    if (g_library.handle) GEMMILL_CU(cuLibraryUnload)(g_library.handle);
    g_library.handle = nullptr;
    for (int i = 0; i < kMostDevices; ++i) {
        g_library.devices[i] = {};
        if (g_library.primary[i]) GEMMILL_CU(cuDevicePrimaryCtxRelease)(i);
        g_library.primary[i] = nullptr;
    }
}

/* A device pointer of the current device is needed; anything else is told, not dereferenced. */
inline int expect_device_pointer(const char* name, const void* pointer, int ordinal, bool needed) {
    if (!needed) return GEMMILL_OK;
    unsigned type = 0, managed = 0;
    int owner = -1;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* values[] = {&type, &managed, &owner};
    GEMMILL_TRY(cuPointerGetAttributes, 3, names, values, reinterpret_cast<CUdeviceptr>(pointer));
    if (managed) return GEMMILL_OK;
    if (type != CU_MEMORYTYPE_DEVICE)
        return (Message() << name << " is a host pointer: expected memory of device " << ordinal).bad_argument();
    if (owner != ordinal)
        return (Message() << name << " lies on device " << owner << ": expected device " << ordinal
                          << ", which the current context belongs to")
            .bad_argument();
    return GEMMILL_OK;
}

inline int expect_aligned(const char* name, const void* pointer, int bytes) {
    if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0) return GEMMILL_OK;
    return (Message() << name << ": expected an address that is a multiple of its element's " << bytes << " bytes").bad_argument();
}

}  // namespace gemmill
