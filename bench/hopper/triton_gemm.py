"""A block-scaled GEMM in Triton: A and B fp8, rcr, a scale for each row of A and 128 consecutive k."""

# No postponed annotations here: Triton reads tl.constexpr from them.
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from hopper.contenders import Contender, Refused
from hopper.operands import Operands

GROUP_K = 128

# Rows and columns of C a program, warps, stages.
CONFIGS = [(16, 64, 4, 6), (64, 64, 4, 5), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 8, 4)]


@triton.jit
def multiply(a, b, aq, c, m, n, k, rows: tl.constexpr, columns: tl.constexpr, group: tl.constexpr, band: tl.constexpr):
    """Write one tile of C; k is a multiple of `group`."""
    # Programs go down `band` tiles of rows before the next column, so that those that run together share operands.
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, rows), tl.cdiv(n, columns)
    first = program // (band * tiles_n) * band
    height = min(tiles_m - first, band)
    within = program % (band * tiles_n)
    row = (first + within % height) * rows + tl.arange(0, rows)
    column = (within // height) * columns + tl.arange(0, columns)
    inner = tl.arange(0, group)
    # Rows beyond the last one repeat others, and are not stored.
    a_row, b_row = row % m, column % n
    at_a = a + a_row[:, None].to(tl.int64) * k + inner[None, :]
    at_b = b + b_row[None, :].to(tl.int64) * k + inner[:, None]
    at_scale = aq + a_row * (k // group)
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(0, k // group):
        total += tl.dot(tl.load(at_a), tl.load(at_b)) * tl.load(at_scale)[:, None]
        at_a += group
        at_b += group
        at_scale += 1
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None].to(tl.int64) * n + column[None, :], total.to(tl.float16), mask=inside)


def tiles_of(x: Operands) -> Iterator[Contender | Refused]:
    """Yield one contender a tile that suits the case; the best of them is what autotuning would choose."""
    m, n, k = x.case.shape
    if k % GROUP_K:
        yield Refused(f"K = {k} is no multiple of {GROUP_K}", peer="triton")
        return
    a = [x.fp8_a(i).view(m, k) for i in range(x.sets)]
    b = [x.fp8_b(i).view(n, k) for i in range(x.sets)]
    aq = [x.scales(i) for i in range(x.sets)]
    c = [x.output(i, torch.float16) for i in range(x.sets)]
    for rows, columns, warps, stages in CONFIGS:
        if rows > max(64, m) or (rows == 16 and m > 64):
            continue
        grid = (triton.cdiv(m, rows) * triton.cdiv(n, columns),)

        def call(i: int, tile=(rows, columns), grid=grid, warps=warps, stages=stages) -> None:
            multiply[grid](
                a[i], b[i], aq[i], c[i], m, n, k, *tile, group=GROUP_K, band=8, num_warps=warps, num_stages=stages
            )

        detail = f"{rows}x{columns}, {warps} warps, {stages} stages"
        yield Contender(call, lambda i: c[i], peer="triton", detail=detail, tile=[rows, columns, GROUP_K])
