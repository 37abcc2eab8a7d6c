"""gemmill: block-scaled FP8 and int4 GEMM kernels from a verified cache."""
