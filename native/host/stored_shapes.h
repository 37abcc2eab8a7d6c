/* How a kernel's operands are stored, and the shapes that follow from it. */
#pragma once

#include "host/problem.h"

namespace gemmill {

struct Storage {
    bool a_column_major, aq_column_major, b_column_major;
    int64_t shuffled_groups; /* b of a preshuffled AQ (T, M, b); 0: AQ is stored as it is */
};

struct Shapes {
    Shape a, aq, b, c;
};

/* What the entry for host pointers takes: AQ is (M, QK), whatever the kernel reads. */
constexpr Shapes packed_shapes(const Storage& s, int64_t m, int64_t n, int64_t k) {
    const int64_t groups = ceil_div(k, kGroupK);
    return {s.a_column_major ? Shape{k, m} : Shape{m, k}, s.aq_column_major ? Shape{groups, m} : Shape{m, groups},
            s.b_column_major ? Shape{n, k} : Shape{k, n}, Shape{m, n}};
}

/* What the kernel reads, and the entry for device pointers takes: AQ is shuffled, if the kernel wants it so. */
constexpr Shapes stored_shapes(const Storage& s, int64_t m, int64_t n, int64_t k) {
    Shapes shapes = packed_shapes(s, m, n, k);
    const int64_t b = s.shuffled_groups;
    if (b) shapes.aq = Shape{ceil_div(ceil_div(k, kGroupK), b), m * b};
    return shapes;
}

}  // namespace gemmill
