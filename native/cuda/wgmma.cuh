// wgmma for 8-bit floats: D[64, N] (+)= X[64, 32] * Y[N, 32]^T with float32 accumulators.
#pragma once
#include "ptx.cuh"

namespace gemmill {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Keep the compiler from moving a use of an accumulator across the asynchronous product.
template <int n>
__device__ __forceinline__ void pin(float (&d)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of a K-major tile with 128-byte rows and 128-byte swizzle: 8 rows are 1024 bytes apart. The address is
// the one part that differs.
struct Descriptor {
    uint32_t low;
    __device__ __forceinline__ Descriptor operator+(uint32_t bytes) const { return {low + (bytes >> 4)}; }
    __device__ __forceinline__ operator uint64_t() const {
        constexpr uint64_t swizzle_128 = 1ull << 62;
        constexpr uint64_t stride_8_rows = uint64_t(1024 >> 4) << 32;
        return swizzle_128 | stride_8_rows | low;
    }
};
__device__ __forceinline__ Descriptor describe(uint32_t address) {
    constexpr uint32_t leading = 1u << 16; // ignored for this layout
    return {uniform(leading | (address >> 4))};
}

template <int n, Elem x, Elem y>
struct Wgmma;

// Operand lists. Accumulators come first, so the other operands' numbers follow from N.
#define GEMMILL_L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GEMMILL_L16 GEMMILL_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GEMMILL_L32 GEMMILL_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GEMMILL_L48 GEMMILL_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define GEMMILL_L64 GEMMILL_L48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define GEMMILL_L96 GEMMILL_L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define GEMMILL_R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GEMMILL_R8(i) GEMMILL_R4(i), GEMMILL_R4(i + 4)
#define GEMMILL_R16(i) GEMMILL_R8(i), GEMMILL_R8(i + 8)
#define GEMMILL_R32(i) GEMMILL_R16(i), GEMMILL_R16(i + 16)
#define GEMMILL_R48(i) GEMMILL_R32(i), GEMMILL_R16(i + 32)
#define GEMMILL_R64(i) GEMMILL_R32(i), GEMMILL_R32(i + 32)
#define GEMMILL_R96(i) GEMMILL_R64(i), GEMMILL_R32(i + 64)

// R = N / 2 accumulators; P0..P5 are the numbers R..R+5 as text.
#define GEMMILL_WGMMA(N, R, P0, P1, P2, P3, P4, P5, X, Y)                                                              \
    template <>                                                                                                      \
    struct Wgmma<N, Elem::X, Elem::Y> {                                                                              \
        /* X from shared memory. */                                                                                  \
        static __device__ __forceinline__ void run(float (&d)[R], uint64_t x, uint64_t y, int accumulate) {         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P2 ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." #X "." #Y " {" GEMMILL_L##R "}, %" P0     \
                         ", %" P1 ", p, 1, 1;\n}\n"                                                                  \
                         : GEMMILL_R##R(0)                                                                           \
                         : "l"(x), "l"(y), "r"(accumulate));                                                         \
        }                                                                                                            \
        /* X from registers. */                                                                                      \
        static __device__ __forceinline__ void run(float (&d)[R], const uint32_t (&x)[4], uint64_t y,               \
                                                   int accumulate) {                                                 \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P5 ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." #X "." #Y " {" GEMMILL_L##R "}, {%" P0    \
                         ",%" P1 ",%" P2 ",%" P3 "}, %" P4 ", p, 1, 1;\n}\n"                                         \
                         : GEMMILL_R##R(0)                                                                           \
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(accumulate));                     \
        }                                                                                                            \
    };
#define GEMMILL_WGMMA_TYPES(N, R, P0, P1, P2, P3, P4, P5)        \
    GEMMILL_WGMMA(N, R, P0, P1, P2, P3, P4, P5, e4m3, e4m3)      \
    GEMMILL_WGMMA(N, R, P0, P1, P2, P3, P4, P5, e4m3, e5m2)      \
    GEMMILL_WGMMA(N, R, P0, P1, P2, P3, P4, P5, e5m2, e4m3)      \
    GEMMILL_WGMMA(N, R, P0, P1, P2, P3, P4, P5, e5m2, e5m2)

GEMMILL_WGMMA_TYPES(16, 8, "8", "9", "10", "11", "12", "13")
GEMMILL_WGMMA_TYPES(32, 16, "16", "17", "18", "19", "20", "21")
GEMMILL_WGMMA_TYPES(64, 32, "32", "33", "34", "35", "36", "37")
GEMMILL_WGMMA_TYPES(96, 48, "48", "49", "50", "51", "52", "53")
GEMMILL_WGMMA_TYPES(128, 64, "64", "65", "66", "67", "68", "69")
GEMMILL_WGMMA_TYPES(192, 96, "96", "97", "98", "99", "100", "101")

} // namespace gemmill
