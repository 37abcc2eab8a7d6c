/* Words and enumerations that every device header uses. */
#pragma once

namespace gemmill::hip {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

typedef u32 u32x2 __attribute__((vector_size(8)));
typedef u32 u32x4 __attribute__((vector_size(16)));
typedef u32 u32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

// So many words as one value, which one instruction loads.
template <int kWords>
struct Words;
template <>
struct Words<1> {
    using Value = u32;
};
template <>
struct Words<2> {
    using Value = u32x2;
};
template <>
struct Words<4> {
    using Value = u32x4;
};

enum class Arch { gfx90a, gfx942, gfx950 };
enum class Kind { fp8, bf8, int4, f32, f16, bf16 };
enum class Pipeline { mem, compv3 };

constexpr int kGroupK = 128;   // consecutive k that share one scale
constexpr int kWave = 64;       // lanes
constexpr int kChunk = 16;      // bytes of the widest load, store and LDS access

constexpr int bits_of(Kind kind) {
    return kind == Kind::int4 ? 4 : kind == Kind::f32 ? 32 : kind == Kind::f16 || kind == Kind::bf16 ? 16 : 8;
}

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace gemmill::hip
