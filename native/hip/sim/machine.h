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
#include "hip/sim/lane.h"

namespace gemmill::hip::sim {

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

}  // namespace gemmill::hip::sim
