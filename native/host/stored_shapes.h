/* The stored shapes of a kernel's operands, by its layout. */
#pragma once

#include "host/problem.h"

namespace gemmill {

/* The stored shape of each operand. */
struct Shapes {
    Shape a, aq, b, c;
};

template <typename Kernel>
Shapes stored_shapes(int64_t m, int64_t n, int64_t k) {
    const int64_t groups = ceil_div(k, kGroupK);
    Shapes s{};
    s.a = Kernel::kOrderA == Order::kContiguousK ? Shape{m, k} : Shape{k, m};
    s.b = Kernel::kOrderB == Order::kContiguousK ? Shape{n, k} : Shape{k, n};
    s.aq = Kernel::kScalesColumnMajor ? Shape{groups, m} : Shape{m, groups};
    s.c = Shape{m, n};
    return s;
}

}  // namespace gemmill
