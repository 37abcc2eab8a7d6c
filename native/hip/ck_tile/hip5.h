/* Makes the HIP headers of ROCm 5, which distributions still carry, take Composable Kernel and compilers of today.
 * Nothing here applies to ROCm 6 and later. */
#pragma once

#ifdef __ASSEMBLER__ /* never: those headers include these, where zig is the compiler; named so that keys cover them */
#include "hip/ck_tile/zig/__clang_cuda_complex_builtins.h"
#include "hip/ck_tile/zig/__clang_cuda_math_forward_declares.h"
#include "hip/ck_tile/zig/__clang_hip_cmath.h"
#include "hip/ck_tile/zig/include/cuda_wrappers/algorithm"
#include "hip/ck_tile/zig/include/cuda_wrappers/complex"
#include "hip/ck_tile/zig/include/cuda_wrappers/new"
#endif

#include <hip/hip_version.h>

#if HIP_VERSION_MAJOR < 6

/* What newer compilers no longer define. */
#if !defined(__AMDGCN_WAVEFRONT_SIZE)
#define __AMDGCN_WAVEFRONT_SIZE 64
#endif

/* Reciprocals that clang's own headers defined up to some release between 19 and 22; not included, for zig's clang. */
#if __CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__
__device__ inline _Float16 gemmill_hip5_rcp_f16(_Float16 x) { return static_cast<_Float16>(1) / x; }
__device__ inline __2f16 gemmill_hip5_rcp_2f16(__2f16 x) { return __2f16{1, 1} / x; }
#define __llvm_amdgcn_rcp_f16 gemmill_hip5_rcp_f16
#define __llvm_amdgcn_rcp_2f16 gemmill_hip5_rcp_2f16
#endif

/* A detail of libstdc++ that they specialise; libc++ has none. */
#include <cmath>
#if defined(_LIBCPP_VERSION)
namespace std {
template <class T>
struct __numeric_type {};
}  // namespace std
#endif

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
