/* Included before everything else: makes the HIP headers of ROCm 5, which distributions still carry, take Composable
 * Kernel. Nothing here applies to ROCm 6 and later. */
#pragma once

#include <hip/hip_version.h>

#if HIP_VERSION_MAJOR < 6

/* There, threadIdx.x is an object of a type of its own. Composable Kernel declares variables of its type. */
#define threadIdx gemmill_hip5_threadIdx
#define blockIdx gemmill_hip5_blockIdx
#include <hip/hip_runtime.h>
#undef threadIdx
#undef blockIdx

namespace gemmill::hip5 {

#define GEMMILL_INDEX(Name, builtin)                                                   \
    struct Name {                                                                      \
        __declspec(property(get = get_x)) unsigned x;                                  \
        __declspec(property(get = get_y)) unsigned y;                                  \
        __declspec(property(get = get_z)) unsigned z;                                  \
        __device__ unsigned get_x() const { return __builtin_amdgcn_##builtin##_x(); } \
        __device__ unsigned get_y() const { return __builtin_amdgcn_##builtin##_y(); } \
        __device__ unsigned get_z() const { return __builtin_amdgcn_##builtin##_z(); } \
    };
GEMMILL_INDEX(ThreadIndex, workitem_id)
GEMMILL_INDEX(BlockIndex, workgroup_id)
#undef GEMMILL_INDEX

}  // namespace gemmill::hip5

extern const __device__ __attribute__((weak)) gemmill::hip5::ThreadIndex threadIdx;
extern const __device__ __attribute__((weak)) gemmill::hip5::BlockIndex blockIdx;

#endif
