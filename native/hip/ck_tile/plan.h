/* Between the two host sides of a Composable Kernel instance: the one that knows its types, the one that launches it.
 *
 * They are two translation units, because the HIP headers and the driver's own declarations (hip_api.h) exclude each
 * other. */
#pragma once

#include "hip/args.h"

namespace gemmill::hip::ck {

struct Plan {
    alignas(16) unsigned char arguments[256]; /* the kernel's one parameter */
    unsigned grid[3];
    unsigned threads;
    int instance; /* index into the instances of the generated source */
};

/* Fill a plan and return NULL; else say in words why Composable Kernel does not take the problem. */
__attribute__((visibility("hidden"))) const char* make_plan(const GemmArgs& args, Plan& plan);

}  // namespace gemmill::hip::ck
