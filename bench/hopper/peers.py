"""Peers that run beside gemmill: cuBLASLt through PyTorch, and a Triton kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmill.layout import GROUP_K, groups

from hopper.contenders import Contender, Refused
from hopper.operands import Operands

if TYPE_CHECKING:
    import torch


def peers(x: Operands) -> Iterator[Contender | Refused]:
    """Yield what else multiplies these operands: there is something for fp8, rcr alone."""
    if (x.case.variant, x.case.layout) == ("fp8", "rcr"):
        yield one_scale(x)
        yield block_scaled(x)
        yield from _triton(x)


def one_scale(x: Operands) -> Contender:
    """Return cuBLASLt with one scale for all of A and one for B: the envelope, a simpler product than ours."""
    import torch

    m, n, k = x.case.shape
    one = torch.ones((), device="cuda")
    a = [x.fp8_a(i).view(m, k) for i in range(x.sets)]
    b = [x.fp8_b(i).view(n, k).T for i in range(x.sets)]
    c = [x.output(i, torch.float16) for i in range(x.sets)]

    def call(i: int) -> None:
        torch._scaled_mm(a[i], b[i], one, one, out_dtype=torch.float16, use_fast_accum=True, out=c[i])

    return Contender(call, lambda i: c[i], scaled=False, peer="cublaslt")


def block_scaled(x: Operands) -> Contender | Refused:
    """Return cuBLASLt with 1x128 scales on A and unit ones on B, in the first form that this PyTorch takes.

    What scales look like changed between its versions, so what is accepted and gives the right product is looked for.
    """
    import torch

    m, n, k = x.case.shape
    a = [x.fp8_a(i).view(m, k) for i in range(x.sets)]
    b = [x.fp8_b(i).view(n, k).T for i in range(x.sets)]
    # A column of scales is contiguous, also where there is one row.
    aq = [torch.empty_strided((m, groups(k)), (1, m), device="cuda").copy_(x.scales(i)) for i in range(x.sets)]
    expected = x.expected(scaled=True)
    reasons = []
    for detail, ones in _unit_scales(n, k):
        for dtype in (torch.float16, torch.bfloat16):
            c = [x.output(i, dtype) for i in range(x.sets)]

            def call(i: int, ones: torch.Tensor = ones, c: list[torch.Tensor] = c) -> None:
                torch._scaled_mm(a[i], b[i], aq[i], ones, out_dtype=c[i].dtype, out=c[i])

            try:
                call(0)
                torch.cuda.synchronize()
            except Exception as error:
                reasons.append(f"{detail} {dtype}: {str(error).splitlines()[0]}")
                continue
            if deviation(c[0], expected) < TOLERANCE:
                return Contender(call, lambda i, c=c: c[i], peer="cublaslt_block", detail=detail)
            reasons.append(f"{detail} {dtype}: a wrong product")
    return Refused("; ".join(reasons), peer="cublaslt_block")


def _unit_scales(n: int, k: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield scales of B that are all 1, in the forms that versions of PyTorch want: [QK, ceil(N / 128)] or [QK, N]."""
    import torch

    blocks, qk = -(-n // GROUP_K), groups(k)
    padded = torch.ones((blocks, -(-qk // 4) * 4), device="cuda")  # a row of blocks starts at a multiple of four
    yield "128x128", padded[:, :qk].T
    yield "128x128", torch.ones((blocks, qk), device="cuda").T
    yield "1x128", torch.ones((qk, n), device="cuda")


def _triton(x: Operands) -> Iterator[Contender | Refused]:
    try:
        from hopper.triton_gemm import tiles_of
    except ImportError as error:
        yield Refused(str(error), peer="triton")
        return
    yield from tiles_of(x)


TOLERANCE = 1e-2  # of the norm; a wrong scale or order is off by far more


def deviation(c: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference relative to the norm of what is expected; infinite for a C with NaN."""
    difference = (c.float() - expected).norm() / expected.norm()
    return float(difference.nan_to_num(nan=float("inf")))
