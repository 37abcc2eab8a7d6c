/* How C is cut into work items, and on how many threads they run. */
#pragma once

#include "cpu/block.h"
#include "cpu/pool.h"

namespace gemmill {

/* A call of fewer multiply-adds than this is done before a second thread would have woken. */
constexpr double kSmallProblem = 1 << 19;

template <typename Kernel>
struct Plan {
    Problem problem;
    int64_t step_m, step_n; /* size of a work item: a cache block, or one of the parts `warps` cuts it into */
    int64_t items_m, items_n;

    int64_t items() const { return items_m * items_n; }

    void cut(int64_t rows, int64_t columns) {
        step_m = rows;
        step_n = columns;
        items_m = ceil_div(problem.m, rows);
        items_n = ceil_div(problem.n, columns);
    }
};

/* Packing an element costs about as much as this many multiply-adds. */
constexpr double kPackCost = 12;

/* Cut C so that the busiest thread has least to do. Large items pack least, small ones share out evenly. */
template <typename Kernel>
Plan<Kernel> make_plan(const Problem& p, int threads) {
    Plan<Kernel> best{p, 0, 0, 0, 0}, plan = best;
    double least = 0;
    for (int parts_m = 1; parts_m <= Kernel::kWarpsM; parts_m *= 2) {
        for (int parts_n = 1; parts_n <= Kernel::kWarpsN; parts_n *= 2) {
            plan.cut(Kernel::kTileM / parts_m, Kernel::kTileN / parts_n);
            const double rows = static_cast<double>(min_of(plan.step_m, p.m));
            const double columns = static_cast<double>(min_of(plan.step_n, p.n));
            const double rounds = static_cast<double>(ceil_div(plan.items(), threads));
            const double cost = rounds * (rows * columns + kPackCost * (rows + columns));
            if (best.items_m == 0 || cost < least) {
                best = plan;
                least = cost;
            }
        }
    }
    return best;
}

template <typename Kernel>
void run_item(void* context, int64_t item, char* scratch) {
    const Plan<Kernel>& plan = *static_cast<const Plan<Kernel>*>(context);
    /* Neighbouring items share columns: their B is still in the shared cache. */
    const int64_t m0 = item % plan.items_m * plan.step_m, n0 = item / plan.items_m * plan.step_n;
    const Rectangle rect{m0, min_of(m0 + plan.step_m, plan.problem.m), n0, min_of(n0 + plan.step_n, plan.problem.n)};
    run_rectangle<Kernel>(Workspace<Kernel>{scratch}, plan.problem, rect);
}

/* C for a valid problem with M, N > 0. The pool is open. */
template <typename Kernel>
void multiply(Pool& pool, const Problem& p) {
    const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const int threads = work < kSmallProblem ? 1 : pool.threads();
    Plan<Kernel> plan = make_plan<Kernel>(p, threads);
    pool.run(plan.items(), threads, run_item<Kernel>, &plan);
}

}  // namespace gemmill
