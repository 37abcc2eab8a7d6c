/* Which instruction-set bits the kernel was compiled to use, and whether this CPU and its system have them.
 *
 * The needed set comes from the compiler's own macros, so it can't drift from the flags.
 */
#pragma once

#include "host/base.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gemmill {

#if defined(__x86_64__)

struct CpuBit {
    const char* name;
    uint32_t leaf, subleaf;
    int reg; /* eax, ebx, ecx, edx */
    int bit;
};

constexpr CpuBit kNeededBits[] = {
    {"sse2", 1, 0, 3, 26},
#if defined(__AVX2__)
    {"sse3", 1, 0, 2, 0},
    {"ssse3", 1, 0, 2, 9},
    {"fma", 1, 0, 2, 12},
    {"cx16", 1, 0, 2, 13},
    {"sse4_1", 1, 0, 2, 19},
    {"sse4_2", 1, 0, 2, 20},
    {"movbe", 1, 0, 2, 22},
    {"popcnt", 1, 0, 2, 23},
    {"osxsave", 1, 0, 2, 27},
    {"avx", 1, 0, 2, 28},
    {"f16c", 1, 0, 2, 29},
    {"bmi1", 7, 0, 1, 3},
    {"avx2", 7, 0, 1, 5},
    {"bmi2", 7, 0, 1, 8},
    {"lzcnt", 0x80000001u, 0, 2, 5},
#endif
#if defined(__AVX512F__)
    {"avx512f", 7, 0, 1, 16},
    {"avx512dq", 7, 0, 1, 17},
    {"avx512cd", 7, 0, 1, 28},
    {"avx512bw", 7, 0, 1, 30},
    {"avx512vl", 7, 0, 1, 31},
#endif
#if defined(__AVX512VBMI__)
    {"avx512vbmi", 7, 0, 2, 1},
#endif
#if defined(__AVX512BF16__)
    {"avx512_bf16", 7, 1, 0, 5},
#endif
};

/* Vector register state the system must save: SSE and AVX, and the three of AVX-512. */
#if defined(__AVX512F__)
constexpr uint32_t kNeededState = 0xe6;
#elif defined(__AVX2__)
constexpr uint32_t kNeededState = 0x06;
#else
constexpr uint32_t kNeededState = 0;
#endif

/* Return the name of something the kernel needs and this machine lacks; NULL when nothing is missing. */
GEMMILL_BASELINE inline const char* missing_cpu_feature() {
    for (const CpuBit& need : kNeededBits) {
        uint32_t reg[4] = {0, 0, 0, 0};
        if (!__get_cpuid_count(need.leaf, need.subleaf, &reg[0], &reg[1], &reg[2], &reg[3])) return need.name;
        if (!(reg[need.reg] >> need.bit & 1)) return need.name;
    }
    if (kNeededState) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & kNeededState) != kNeededState) return "vector register state saved by the operating system";
    }
    return nullptr;
}

#else

/* Other architectures get portable code alone. */
GEMMILL_BASELINE inline const char* missing_cpu_feature() { return nullptr; }

#endif

}  // namespace gemmill
