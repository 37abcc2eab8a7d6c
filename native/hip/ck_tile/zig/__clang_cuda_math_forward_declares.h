/* HIP's headers of ROCm 5 include this file of clang's, which zig leaves out; nothing of it is used. */
