#include "hip/sim/matrix.h"

namespace gemmill::hip::sim {
namespace {

struct Fp8Table {
    float value[256];
    Fp8Table(int fraction_bits, Encoding encoding) {
        for (int i = 0; i < 256; ++i) value[i] = decode_fp8((u8)i, fraction_bits, encoding);
    }
};

const float* fp8_table(int fraction_bits, Encoding encoding) {
    static const Fp8Table TABLES[4] = {
        {2, Encoding::ocp}, {2, Encoding::fnuz}, {3, Encoding::ocp}, {3, Encoding::fnuz}};
    return TABLES[(fraction_bits - 2) * 2 + (encoding == Encoding::fnuz)].value;
}

// Registers to a matrix [k][row].
void unpack(const MatrixOpInfo& op, Arch arch, const u8 (&registers)[kWave][32], float (&matrix)[128][16]) {
    const float* table = op.element_bytes == 1 ? fp8_table(op.fraction_bits, encoding_of(arch)) : nullptr;
    for (int lane = 0; lane < kWave; ++lane)
        for (int e = 0; e < op.k / 4; ++e) {
            const u8* const at = registers[lane] + e * op.element_bytes;
            matrix[k_of(op, lane / 16, e)][lane % 16] = table ? table[*at] : decode_bf16((u16)(at[0] | at[1] << 8));
        }
}

}  // namespace

void execute(MatrixOp op, Arch arch, WaveOperands& wave) {
    float p[128][16], q[128][16];
    const MatrixOpInfo& row = info(op);
    unpack(row, arch, wave.p, p);
    unpack(row, arch, wave.q, q);
    double sum[16][16] = {};
    for (int k = 0; k < row.k; ++k)
        for (int i = 0; i < 16; ++i)
            for (int j = 0; j < 16; ++j) sum[i][j] += (double)p[k][i] * q[k][j];
    for (int lane = 0; lane < kWave; ++lane)
        for (int v = 0; v < 4; ++v)
            wave.d[lane][v] = (float)(wave.d[lane][v] + sum[4 * (lane / 16) + v][lane % 16]);
}

}  // namespace gemmill::hip::sim
