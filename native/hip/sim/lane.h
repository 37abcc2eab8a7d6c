/* What a simulated kernel sees of the machine; machine.h says what is checked.
 *
 * Every kernel compiles this, and nothing of the C++ library: its headers would cost more than the kernel. */
#pragma once

#include "hip/types.h"

namespace gemmill::hip::sim {

struct Kernel {
    const char* name;
    Arch arch;
    u32 threads;
    u32 lds_bytes;
    u32 args_bytes;
    void (*entry)(const void* args);
};

enum class MatrixOp { bf16_16x16x16, fp8_16x16x32, bf8_16x16x32, fp8_16x16x128, bf8_16x16x128 };

/* ---- What device.h calls, on a lane ---- */

u32 thread_index();
u32 block_x();
u32 block_y();
void check_global(const void* p, u32 bytes);
u8* check_lds(u32 offset, u32 bytes, bool write);
void barrier();
void matrix_op(MatrixOp op, const void* p, const void* q, u32 operand_bytes, f32x4& d);
u32 shuffle(u32 value, u32 from);
u64 vote(bool mine);

}  // namespace gemmill::hip::sim
