/* Default floating-point environment while a kernel runs: round to nearest, subnormals kept.
 *
 * A caller may have set flush-to-zero or another rounding mode; results must not depend on it.
 */
#pragma once

#include "host/base.h"

namespace gemmill {

class FloatEnv {
  public:
#if defined(__x86_64__)
    FloatEnv() {
        const uint32_t standard = 0x1f80; /* all exceptions masked, nearest, no FTZ, no DAZ */
        __asm__ volatile("stmxcsr %0" : "=m"(saved_));
        __asm__ volatile("ldmxcsr %0" : : "m"(standard) : "memory");
    }
    ~FloatEnv() { __asm__ volatile("ldmxcsr %0" : : "m"(saved_) : "memory"); }

  private:
    uint32_t saved_;
#elif defined(__aarch64__)
    FloatEnv() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
    }
    ~FloatEnv() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

  private:
    uint64_t saved_;
#else
    FloatEnv() {}
    ~FloatEnv() {}

  private:
#endif
    FloatEnv(const FloatEnv&) = delete;
    FloatEnv& operator=(const FloatEnv&) = delete;
};

}  // namespace gemmill
