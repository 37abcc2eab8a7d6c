/* The page of definitions that stands in for the HIP headers: what a kernel needs of its device, and no more.
 *
 * sim/override/hip/device.h gives the same functions on the host, and takes this file's place by include order.
 * Kernels reach memory and wave-wide operations through them alone, so the simulator can check every access. */
#pragma once

// Every function from here on, and in the headers that follow, is device code; this saves annotating each.
#pragma clang force_cuda_host_device begin

#include "hip/types.h"

namespace gemmill::hip {

// `Impl` holds kThreads and run(const Args&); a kernel takes one struct.
#define GEMMILL_KERNEL(name, Impl, Args)                                                                            \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(Impl::kThreads, Impl::kThreads))) void name(Args args) { \
        Impl::run(args);                                                                                            \
    }

#define GEMMILL_UNROLL _Pragma("unroll")

inline u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
inline u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
inline u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }

/* ---- Memory ------------------------------------------------------------------------------------------ */

template <class T>
struct __attribute__((packed)) Unaligned {
    T value;
};

// The hardware takes any alignment in global memory; telling the compiler so keeps one wide instruction.
template <class T>
T global_load(const void* p) {
    return ((const __attribute__((address_space(1))) Unaligned<T>*)p)->value;
}

template <class T>
void global_store(void* p, T value) {
    ((__attribute__((address_space(1))) Unaligned<T>*)p)->value = value;
}

// The kernel's LDS; `Lds::pool` is the only object there, so its offsets are LDS addresses.
template <int kBytes>
struct Lds {
    static __attribute__((shared, aligned(16))) u8 pool[kBytes];

    template <class T>
    static T load(u32 offset) {
        return *(const T*)(pool + offset);
    }
    template <class T>
    static void store(u32 offset, T value) {
        *(T*)(pool + offset) = value;
    }
};
template <int kBytes>
__attribute__((shared, aligned(16))) u8 Lds<kBytes>::pool[kBytes];

// Orders LDS alone where the compiler can say so (clang 20): global loads that run ahead then stay in flight.
#if __clang_major__ >= 20
#define GEMMILL_FENCE(order) __builtin_amdgcn_fence(order, "workgroup", "local")
#else
#define GEMMILL_FENCE(order) __builtin_amdgcn_fence(order, "workgroup")
#endif

inline void barrier() {
    GEMMILL_FENCE(__ATOMIC_RELEASE);
    __builtin_amdgcn_s_barrier();
    GEMMILL_FENCE(__ATOMIC_ACQUIRE);
}

// The kernel's arguments, read anew: what follows a long loop then need not stay in registers during it.
template <class Args>
const Args& reload(const Args&) {
    auto* args = (const __attribute__((address_space(4))) Args*)__builtin_amdgcn_kernarg_segment_ptr();
    __asm__ volatile("" : "+s"(args));
    return *(const Args*)args;
}

/* ---- Lane operations --------------------------------------------------------------------------------- */

// v_perm_b32: result byte i is byte selector[i] of {high, low}; selector 12 gives 0x00 and 13 gives 0xff.
inline u32 permute_bytes(u32 high, u32 low, u32 selector) { return __builtin_amdgcn_perm(high, low, selector); }

inline u16 to_f16(float x) { return bit_cast<u16>((_Float16)x); }

/* ---- Wave operations. All 64 lanes take part in each ------------------------------------------------- */

// `x` of lane `from`, modulo 64; by the LDS hardware's crossbar, which touches no LDS.
inline u32 shuffle(u32 x, u32 from) { return (u32)__builtin_amdgcn_ds_bpermute((int)(from * 4), (int)x); }
inline u32 shuffle_xor(u32 x, u32 mask) { return shuffle(x, (thread_index() % kWave) ^ mask); }

// Bit i is lane i's.
inline u64 ballot(bool mine) { return __builtin_amdgcn_ballot_w64(mine); }
inline bool any(bool mine) { return ballot(mine) != 0; }
inline bool all(bool mine) { return ballot(!mine) == 0; }

/* ---- Matrix operations: D[i][j] += sum over k of P[i][k] * Q[j][k], 16 by 16 --------------------------- */

// gfx90a; four bf16 of p and of q a lane.
inline f32x4 mfma_16x16x16_bf16(u32x2 p, u32x2 q, f32x4 d) {
    typedef short s16x4 __attribute__((vector_size(8)));
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bit_cast<s16x4>(p), bit_cast<s16x4>(q), d, 0, 0, 0);
}

// gfx942; eight FNUZ bytes a lane.
template <Kind kKind>
f32x4 mfma_16x16x32(u32x2 p, u32x2 q, f32x4 d) {
    if constexpr (kKind == Kind::fp8)
        return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(bit_cast<long>(p), bit_cast<long>(q), d, 0, 0, 0);
    else
        return __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8(bit_cast<long>(p), bit_cast<long>(q), d, 0, 0, 0);
}

// gfx950; thirty-two OCP bytes a lane, and an E8M0 scale of 1 (127) for every block of 32. Defined for that arch alone,
// because compilers that do for the others don't know the instruction.
template <Kind kKind>
f32x4 mfma_16x16x128(u32x8 p, u32x8 q, f32x4 d);

#ifdef __gfx950__
template <Kind kKind>
f32x4 mfma_16x16x128(u32x8 p, u32x8 q, f32x4 d) {
    constexpr int kFormat = kKind == Kind::fp8 ? 0 : 1;
    constexpr int kUnit = 127;
    typedef int i32x8 __attribute__((vector_size(32)));
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(bit_cast<i32x8>(p), bit_cast<i32x8>(q), d, kFormat, kFormat,
                                                            0, kUnit, 0, kUnit);
}
#endif

}  // namespace gemmill::hip
