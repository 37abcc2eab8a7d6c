/* The part of the HIP runtime API that the host shim uses, declared here so that no HIP header is needed.
 *
 * Values and layouts are those of ROCm 6 and later (hipDeviceProp_tR0600); only the field that is read is named. */
#pragma once

#include <stddef.h>

typedef int hipError_t;
typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;

enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNoBinaryForGpu = 209,
    hipErrorNotFound = 500,
    hipErrorLaunchFailure = 719,
    hipErrorUnknown = 999,
};

enum { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2 };

typedef struct {
    char before[1160];
    char gcnArchName[256]; /* such as gfx942:sramecc+:xnack- */
    char after[56];
} hipDeviceProp_tR0600;

/* X(return type, name, parameters) of every function that is looked up in libamdhip64. */
#define GEMMILL_HIP_FUNCTIONS(X)                                                                                     \
    X(const char*, hipGetErrorString, (hipError_t))                                                                  \
    X(hipError_t, hipGetDevice, (int*))                                                                              \
    X(hipError_t, hipGetDevicePropertiesR0600, (hipDeviceProp_tR0600*, int))                                         \
    X(hipError_t, hipModuleLoadData, (hipModule_t*, const void*))                                                    \
    X(hipError_t, hipModuleUnload, (hipModule_t))                                                                    \
    X(hipError_t, hipModuleGetFunction, (hipFunction_t*, hipModule_t, const char*))                                  \
    X(hipError_t, hipModuleLaunchKernel, (hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                          unsigned, hipStream_t, void**, void**))                                    \
    X(hipError_t, hipMalloc, (void**, size_t))                                                                       \
    X(hipError_t, hipFree, (void*))                                                                                  \
    X(hipError_t, hipMemcpy, (void*, const void*, size_t, int))                                                      \
    X(hipError_t, hipEventCreate, (hipEvent_t*))                                                                     \
    X(hipError_t, hipEventDestroy, (hipEvent_t))                                                                     \
    X(hipError_t, hipEventRecord, (hipEvent_t, hipStream_t))                                                         \
    X(hipError_t, hipEventSynchronize, (hipEvent_t))                                                                 \
    X(hipError_t, hipEventElapsedTime, (float*, hipEvent_t, hipEvent_t))                                             \
    X(hipError_t, hipStreamSynchronize, (hipStream_t))
