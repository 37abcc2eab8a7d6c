/* Where the lines of a stored operand lie. */
#pragma once

#include "host/base.h"

namespace gemmill {

/* A stored operand: so many lines, each of so many elements. */
struct Shape {
    int64_t lines, length;
};

}  // namespace gemmill
