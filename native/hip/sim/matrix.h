/* The matrix instructions: which archs have them, where the operands lie, what they compute.
 *
 * Layouts: AMD's matrix instruction calculator for gfx90a and gfx942, the CDNA4 ISA guide and AMD's article on
 * CDNA3/CDNA4 matrix cores for gfx950. For all of them, with P of 16 rows i and Q of 16 rows j (Q is the
 * instruction's B transposed):
 *     lane l holds row l % 16 of P and of Q, and the k that `k_of(l / 16, e)` gives for its element e;
 *     of D it holds [4 * (l / 16) + v][l % 16] in element v.
 * D = P * Q^T + C: products and their sum are exact here up to double precision, then rounded to float once;
 * the hardware's order of summation is not documented. */
#pragma once

#include "hip/types.h"
#include "hip/sim/lane.h"
#include "hip/sim/number.h"

namespace gemmill::hip::sim {

struct MatrixOpInfo {
    const char* mnemonic;
    int k;              // of the instruction
    int element_bytes;
    int fraction_bits;  // of an fp8 operand
    bool on[3];         // gfx90a, gfx942, gfx950
};

inline const MatrixOpInfo& info(MatrixOp op) {
    static const MatrixOpInfo TABLE[] = {
        {"v_mfma_f32_16x16x16_bf16_1k", 16, 2, 7, {true, true, true}},
        {"v_mfma_f32_16x16x32_fp8_fp8", 32, 1, 3, {false, true, true}},
        {"v_mfma_f32_16x16x32_bf8_bf8", 32, 1, 2, {false, true, true}},
        {"v_mfma_scale_f32_16x16x128_f8f6f4 (fp8)", 128, 1, 3, {false, false, true}},
        {"v_mfma_scale_f32_16x16x128_f8f6f4 (bf8)", 128, 1, 2, {false, false, true}},
    };
    return TABLE[(int)op];
}

// The k of element `e` in lanes 16 * quarter .. + 15.
inline int k_of(const MatrixOpInfo& op, int quarter, int e) {
    if (op.k == 128) return e / 16 * 64 + quarter * 16 + e % 16;  // two runs of 16 bytes
    return quarter * (op.k / 4) + e;
}

inline Encoding encoding_of(Arch arch) { return arch == Arch::gfx950 ? Encoding::ocp : Encoding::fnuz; }

/* One wave's operands: registers of 64 lanes, as bytes. */
struct WaveOperands {
    u8 p[kWave][32];
    u8 q[kWave][32];
    float d[kWave][4];
};

void execute(MatrixOp op, Arch arch, WaveOperands& wave);

}  // namespace gemmill::hip::sim
