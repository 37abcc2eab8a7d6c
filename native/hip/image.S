/* The code object of the kernel, as linked in the directory where this is assembled. HIP reads it where it lies. */
    .section .rodata.gemmill_code_object, "a", %progbits
    .balign 4096
    .globl gemmill_code_object
    .hidden gemmill_code_object
gemmill_code_object:
    .incbin "kernel.co"
    .section .note.GNU-stack, "", %progbits
