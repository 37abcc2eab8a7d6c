/* The switch itself: push what the calling convention preserves, swap stacks, pop. */
#include "hip/sim/fiber.h"

#if defined(__x86_64__)
__asm__(R"(
    .text
    .globl gemmill_fiber_switch
    .hidden gemmill_fiber_switch
gemmill_fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r13
    pushq %r12
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r12
    popq %r13
    popq %rbx
    popq %rbp
    ret
    .globl gemmill_fiber_start
    .hidden gemmill_fiber_start
gemmill_fiber_start:
    movq %r13, %rdi
    call *%r12
    ud2
)");
#elif defined(__aarch64__)
__asm__(R"(
    .text
    .globl gemmill_fiber_switch
    .hidden gemmill_fiber_switch
gemmill_fiber_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .globl gemmill_fiber_start
    .hidden gemmill_fiber_start
gemmill_fiber_start:
    mov x0, x20
    blr x19
    brk #1
)");
#endif
