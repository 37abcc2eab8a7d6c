/* native/hip/device.h for the host: the same functions, carried out and checked by the simulator. */
#pragma once

#include "hip/types.h"
#include "hip/sim/lane.h"

namespace gemmill::hip {

// One simulated kernel a library; the driver finds it by this name.
#define GEMMILL_KERNEL(name, Impl, Args)                                                            \
    extern "C" const sim::Kernel gemmill_simulated_kernel;                                          \
    const sim::Kernel gemmill_simulated_kernel = {                                                  \
        #name, Impl::kArch, Impl::kThreads, Impl::kLdsBytes, sizeof(Args),                            \
        [](const void* args) { Impl::run(*static_cast<const Args*>(args)); }};

#define GEMMILL_UNROLL

using sim::barrier, sim::block_x, sim::block_y, sim::thread_index;

template <class T>
T global_load(const void* p) {
    sim::check_global(p, sizeof(T));
    T value;
    __builtin_memcpy(&value, p, sizeof(T));
    return value;
}

template <class T>
void global_store(void* p, T value) {
    sim::check_global(p, sizeof(T));
    __builtin_memcpy(p, &value, sizeof(T));
}

template <class Args>
const Args& reload(const Args& args) {
    return args;
}

template <int kBytes>
struct Lds {
    template <class T>
    static T load(u32 offset) {
        T value;
        __builtin_memcpy(&value, sim::check_lds(offset, sizeof(T), false), sizeof(T));
        return value;
    }
    template <class T>
    static void store(u32 offset, T value) {
        __builtin_memcpy(sim::check_lds(offset, sizeof(T), true), &value, sizeof(T));
    }
};

// v_perm_b32, whole: selectors 8 to 11 spread the sign of bytes 1, 3, 5 and 7.
inline u32 permute_bytes(u32 high, u32 low, u32 selector) {
    const u64 bytes = (u64)high << 32 | low;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 s = selector >> 8 * i & 0xff;
        u32 byte;
        if (s >= 13) byte = 0xff;
        else if (s == 12) byte = 0;
        else if (s >= 8) byte = bytes >> (16 * (s - 8) + 15) & 1 ? 0xff : 0;
        else byte = bytes >> 8 * s & 0xff;
        result |= byte << 8 * i;
    }
    return result;
}

// To nearest, ties to even; in integers, since not every host compiler has a 16-bit float.
inline u16 to_f16(float x) {
    const u32 bits = bit_cast<u32>(x);
    const u32 sign = bits >> 16 & 0x8000;
    const u32 magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and above
    u32 wide, drop;  // significand, and how many of its bits do not fit
    u32 exponent = magnitude >> 23;
    if (exponent >= 113) {
        wide = magnitude - (112u << 23);
        drop = 13;
    } else {  // subnormal
        if (exponent < 102) return (u16)sign;
        wide = (magnitude & 0x7fffff) | 0x800000;
        drop = 126 - exponent;
    }
    const u32 half = 1u << (drop - 1), rest = wide & ((1u << drop) - 1);
    u32 result = wide >> drop;
    if (rest > half || (rest == half && (result & 1))) ++result;
    return (u16)(sign | result);
}

using sim::shuffle;
inline u32 shuffle_xor(u32 x, u32 mask) { return shuffle(x, (thread_index() % kWave) ^ mask); }

inline u64 ballot(bool mine) { return sim::vote(mine); }
inline bool any(bool mine) { return ballot(mine) != 0; }
inline bool all(bool mine) { return ballot(!mine) == 0; }

inline f32x4 mfma_16x16x16_bf16(u32x2 p, u32x2 q, f32x4 d) {
    sim::matrix_op(sim::MatrixOp::bf16_16x16x16, &p, &q, sizeof p, d);
    return d;
}

template <Kind kKind>
f32x4 mfma_16x16x32(u32x2 p, u32x2 q, f32x4 d) {
    sim::matrix_op(kKind == Kind::fp8 ? sim::MatrixOp::fp8_16x16x32 : sim::MatrixOp::bf8_16x16x32, &p, &q, sizeof p, d);
    return d;
}

template <Kind kKind>
f32x4 mfma_16x16x128(u32x8 p, u32x8 q, f32x4 d) {
    sim::matrix_op(kKind == Kind::fp8 ? sim::MatrixOp::fp8_16x16x128 : sim::MatrixOp::bf8_16x16x128, &p, &q, sizeof p, d);
    return d;
}

}  // namespace gemmill::hip
