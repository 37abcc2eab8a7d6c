"""The error against float64 over a long K, next to a plain FP8 matmul's.

Fp8 wgmma keeps fewer bits of its sums than float32 has; what a kernel does about that shows where K is long, and most
where all products have one sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper.cases import Case
from hopper.contenders import Refused, own
from hopper.operands import Operands

if TYPE_CHECKING:
    import torch

CASE = Case("fp8", "rcr", 512, 512, 18432)


def errors(cache: Path) -> list[dict[str, Any]]:
    """Return {"data", "who", "error", "worst"} of every kernel and of `torch._scaled_mm`; unit scales everywhere.

    ``error`` is the norm of the difference relative to the result's; ``worst`` the largest difference relative to the
    largest element. "exact, rounded" is the error of the right result in float16: none can be better.
    """
    import torch

    found: list[dict[str, Any]] = []
    for data in ("normal", "positive"):
        x = Operands(CASE, sets=1)
        x.aq.fill_(1)
        if data == "positive":
            x.a &= 0x7F
            x.b &= 0x7F
        exact = x.matrix_a(0).double() @ x.matrix_b(0).double()
        for who, run in _everyone(cache, x, exact):
            try:
                c = run().double()
                torch.cuda.synchronize()
            except Exception as error:
                found.append({"data": data, "who": who, "error": None, "worst": None, "failed": str(error)})
                continue
            found.append(
                {
                    "data": data,
                    "who": who,
                    "error": float((c - exact).norm() / exact.norm()),
                    "worst": float((c - exact).abs().max() / exact.abs().max()),
                }
            )
    return found


def _everyone(cache: Path, x: Operands, exact: torch.Tensor) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    import torch

    yield "exact, rounded to float16", lambda: exact.half()
    for contender in own(cache, x):
        if isinstance(contender, Refused):
            continue

        def mine(contender: Any = contender) -> torch.Tensor:
            contender.call(0)
            c: torch.Tensor = contender.output(0)
            return c

        tile = "x".join(map(str, (contender.tile or [])[:2]))
        yield f"gemmill {contender.detail} {tile}, float16", mine
    m, n, k = CASE.shape
    one = torch.ones((), device="cuda")
    for fast in (True, False):
        for dtype in (torch.float16, torch.float32):

            def theirs(fast: bool = fast, dtype: torch.dtype = dtype) -> torch.Tensor:
                a, b = x.fp8_a(0).view(m, k), x.fp8_b(0).view(n, k).T
                return torch._scaled_mm(a, b, one, one, out_dtype=dtype, use_fast_accum=fast)

            yield f"torch._scaled_mm, fast accumulation {'on' if fast else 'off'}, {str(dtype)[6:]}", theirs
