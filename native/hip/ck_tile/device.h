/* What a Composable Kernel instance needs on the device: its headers, and what those of HIP leave to a library. */
#pragma once

#include "hip/ck_tile/hip5.h" /* first */

#include <hip/hip_runtime.h>

#include <ck_tile/core.hpp>
#include <ck_tile/ops/common.hpp>
#include <ck_tile/ops/epilogue.hpp>
#include <ck_tile/ops/gemm.hpp>
#include <ck_tile/ops/gemm_quant.hpp>

#include "hip/ck_tile/rows.h"

/* The one function of the device libraries that the HIP headers reach; with it, none has to be installed. */
extern "C" __device__ __attribute__((const)) unsigned __ockl_mul_hi_u32(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
