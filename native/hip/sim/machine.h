/* The simulated GPU: runs a kernel's lanes as fibres and checks everything they do.
 *
 * A lane runs until its next wave-wide operation. When all 64 lanes of its wave have come to the same one, that
 * is executed; a wave at a barrier waits for all others. Between barriers the waves run in the launch's order:
 * a kernel must be right in every one. What is checked, and stops the launch with a message:
 *   global memory   every byte lies in one live allocation
 *   LDS             inside the kernel's LDS; aligned to its size; written before read; no two lanes touch a word
 *                   between two barriers if one of them writes it
 *   wave operations all lanes take part in the same one; the arch has the instruction
 *   barriers        all waves arrive, none has finished */
#pragma once

#include <cstddef>
#include <string>

#include "hip/types.h"
#include "hip/sim/matrix.h"

namespace gemmill::hip::sim {

struct Kernel {
    const char* name;
    Arch arch;
    u32 threads;
    u32 lds_bytes;
    u32 args_bytes;
    void (*entry)(const void* args);
};

enum class Order { forward, reverse, random };

struct Launch {
    const Kernel* kernel;
    const void* args;
    u32 grid_x, grid_y;
    Arch arch;  // of the device
    Order order;
    u64 seed;  // of Order::random
};

// Run a launch to its end; the first violation, or "".
std::string run(const Launch& launch);

/* Memory that kernels may touch. */
void add_memory(void* base, std::size_t bytes);
bool remove_memory(void* base);

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
