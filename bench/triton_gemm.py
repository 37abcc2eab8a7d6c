"""A block-scaled FP8 GEMM in Triton, the plainest there is: what bench/host_overhead.py calls beside gemmill's."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_scaled(a, b, aq, c, m, n, k, lda, ldb, ldaq, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """C[m,n] = sum over groups of AQ[m,g] * (A[m,g] @ B[g,n]); layout rcr, one program a tile of C."""
    GROUP: tl.constexpr = 128
    tiles_n = tl.cdiv(n, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, GROUP)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for g in range(tl.cdiv(k, GROUP)):
        at = g * GROUP + inner
        x = tl.load(a + rows[:, None] * lda + at[None, :], (rows[:, None] < m) & (at[None, :] < k), 0.0)
        y = tl.load(b + at[:, None] + columns[None, :] * ldb, (at[:, None] < k) & (columns[None, :] < n), 0.0)
        scale = tl.load(aq + rows * ldaq + g, rows < m, 0.0)
        total += scale[:, None] * tl.dot(x, y)
    to = c + rows[:, None] * ldc + columns[None, :]
    tl.store(to, total.to(tl.float16), (rows[:, None] < m) & (columns[None, :] < n))
