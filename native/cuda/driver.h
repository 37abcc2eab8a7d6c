/* libcuda.so.1, opened when first needed: a kernel library loads, and says what it is, without a driver. */
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>

#include "host/error.h"

namespace gemmill {

#define GEMMILL_DRIVER_FUNCTIONS(X)                                                                              \
    X(cuInit) X(cuGetErrorName) X(cuGetErrorString)                                                              \
    X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute)                                \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                                                     \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                                  \
    X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuKernelSetAttribute)                        \
    X(cuLaunchKernelEx) X(cuTensorMapEncodeTiled) X(cuPointerGetAttributes)                                      \
    X(cuMemAlloc) X(cuMemFree) X(cuMemcpyHtoD) X(cuMemcpyDtoH)                                                   \
    X(cuStreamSynchronize) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventSynchronize)             \
    X(cuEventElapsedTime)

/* The headers' macros map names to their current versions (cuMemAlloc is cuMemAlloc_v2); TEXT sees through them. */
#define GEMMILL_TEXT_OF(name) #name
#define GEMMILL_TEXT(name) GEMMILL_TEXT_OF(name)

struct Driver {
#define X(name) decltype(&::name) name;
    GEMMILL_DRIVER_FUNCTIONS(X)
#undef X
};

inline Driver g_driver = {};
#define GEMMILL_CU(name) gemmill::g_driver.name

inline int driver_error(const char* what, CUresult result) {
    const char *name = nullptr, *text = nullptr;
    if (GEMMILL_CU(cuGetErrorName)) {
        GEMMILL_CU(cuGetErrorName)(result, &name);
        GEMMILL_CU(cuGetErrorString)(result, &text);
    }
    return (Message() << what << " failed: " << (name ? name : "error") << " (" << static_cast<int64_t>(result) << ")"
                      << (text ? ", " : "") << (text ? text : ""))
        .device_error();
}

#define GEMMILL_TRY(name, ...)                                                                       \
    do {                                                                                             \
        const CUresult result_ = GEMMILL_CU(name)(__VA_ARGS__);                                      \
        if (result_ != CUDA_SUCCESS) return gemmill::driver_error(GEMMILL_TEXT(name), result_);                   \
    } while (0)

/* Open the driver and start it; the reason of a failure is the caller's text. Not cached: a driver may come later. */
inline int open_driver() {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool ready = false;
    if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) return GEMMILL_OK;
    struct Lock {
        Lock() { pthread_mutex_lock(&mutex); }
        ~Lock() { pthread_mutex_unlock(&mutex); }
    } lock;
    if (ready) return GEMMILL_OK;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return (Message() << "no NVIDIA driver: libcuda.so.1 cannot be opened; this kernel needs a GPU of compute "
                             "capability 9.0")
            .unsupported();
    }
    Driver found = {};
#define X(name)                                                                                             \
    found.name = reinterpret_cast<decltype(&::name)>(dlsym(library, GEMMILL_TEXT(name)));              \
    if (!found.name)                                                                                   \
        return (Message() << "the NVIDIA driver is too old: libcuda.so.1 has no " << GEMMILL_TEXT(name)     \
                          << "; a driver for CUDA 12.3 or newer is needed")                                 \
            .device_error();
    GEMMILL_DRIVER_FUNCTIONS(X)
#undef X
    g_driver = found;
    const CUresult result = GEMMILL_CU(cuInit)(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return (Message() << "no CUDA device: this kernel needs a GPU of compute capability 9.0").unsupported();
    if (result != CUDA_SUCCESS) return driver_error("cuInit", result);
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
    return GEMMILL_OK;
}

}  // namespace gemmill
