/* What every other header of the cpu backend may rely on: integer types and compiler attributes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GEMMILL_INLINE inline __attribute__((always_inline))

/* Code that runs before the CPU is known to have the kernel's instructions must not use them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GEMMILL_BASELINE __attribute__((noinline, target("arch=x86-64,no-avx,no-bmi,no-bmi2,no-lzcnt,no-movbe")))
#elif defined(__x86_64__)
#define GEMMILL_BASELINE __attribute__((noinline, target("no-avx,no-bmi,no-bmi2,no-lzcnt,no-movbe")))
#else
#define GEMMILL_BASELINE __attribute__((noinline))
#endif

namespace gemmill {

constexpr int64_t kGroupK = 128; /* consecutive k that share one scale */
constexpr size_t kCacheLine = 64;

template <typename T>
constexpr T min_of(T a, T b) {
    return a < b ? a : b;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

constexpr size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

/* Reinterpret bits; memcpy is the one form every compiler takes and aliasing rules allow. */
template <typename To, typename From>
GEMMILL_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* Where the elements of a matrix operand lie: element (row, k) of A, or (column, k) of B. */
enum class Order { kContiguousK, kContiguousRows };

}  // namespace gemmill
