/* Fibres: one stack and one saved stack pointer each; a switch costs a few nanoseconds.
 *
 * ucontext would do, but its switch is a system call, and the simulator switches millions of times. */
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" void gemmill_fiber_switch(void** save, void* resume);
extern "C" void gemmill_fiber_start();

namespace gemmill::hip::sim {

class Fiber {
   public:
    // Make the fibre ready to call entry(argument); entry must never return.
    void prepare(void* stack, std::size_t bytes, void (*entry)(void*), void* argument) {
        auto* top = reinterpret_cast<std::uintptr_t*>((reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15});
        // What gemmill_fiber_switch pops; it returns to gemmill_fiber_start, which calls ENTRY with ARGUMENT.
        top -= FRAME;
        for (int i = 0; i < FRAME; ++i) top[i] = 0;
        top[ENTRY] = reinterpret_cast<std::uintptr_t>(entry);
        top[ARGUMENT] = reinterpret_cast<std::uintptr_t>(argument);
        top[RETURN] = reinterpret_cast<std::uintptr_t>(&gemmill_fiber_start);
        saved_ = top;
    }
    static void switch_to(Fiber& from, Fiber& to) { gemmill_fiber_switch(&from.saved_, to.saved_); }

   private:
#if defined(__x86_64__)
    enum { ENTRY = 2, ARGUMENT = 3, RETURN = 6, FRAME = 7 };  // r15 r14 r12 r13 rbx rbp return
#elif defined(__aarch64__)
    enum { ENTRY = 0, ARGUMENT = 1, RETURN = 11, FRAME = 20 };  // x19..x30, d8..d15
#else
#error "the simulator's fibres are written for x86-64 and AArch64"
#endif
    void* saved_ = nullptr;
};

}  // namespace gemmill::hip::sim
