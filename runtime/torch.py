"""``torch.ops.gemmill.gemm_aquant``: gemm_aquant as a torch operator, for torch.compile and torch.export.

Importing this module registers it:

    import gemmill.torch
    c = torch.ops.gemmill.gemm_aquant(a_q, b, a_scale)

    gemmill::gemm_aquant(Tensor a, Tensor b, Tensor a_scale, *, ScalarType? out_dtype=None, str? int4_order=None,
                         int? tile_k=None, str? kernel=None) -> Tensor

a, b and a_scale are as for `gemmill.gemm_aquant`; an operator takes tensors alone, so what the classes there say,
options say here:

int4_order
    "C" or "F": a is the uint8 bytes of a `gemmill.Int4Matrix` [M, K] in that order. M comes from a_scale, K from b.
tile_k
    a_scale is preshuffled, [T, M, b], as in `gemmill.PreshuffledScale`.
kernel
    A kernel's name or key.

It takes CUDA and CPU tensors. It has no gradient: torch warns when one is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from gemmill.api import gemm_aquant
from gemmill.layout import groups
from gemmill.operands import Int4Matrix, PreshuffledScale

__all__ = ["LIBRARY", "SCHEMA"]

SCHEMA = (
    "gemm_aquant(Tensor a, Tensor b, Tensor a_scale, *, ScalarType? out_dtype=None, str? int4_order=None, "
    "int? tile_k=None, str? kernel=None) -> Tensor"
)

# Kept for the life of the process: an operator goes when its library does.
LIBRARY = torch.library.Library("gemmill", "DEF")
LIBRARY.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))


def _gemm_aquant(
    a: Any,
    b: Any,
    a_scale: Any,
    *,
    out_dtype: Any = None,
    int4_order: str | None = None,
    tile_k: int | None = None,
    kernel: str | None = None,
) -> Any:
    k = b.shape[0]
    a_q = a if int4_order is None else Int4Matrix(a, (a_scale.shape[0 if tile_k is None else 1], k), int4_order)
    scale = a_scale if tile_k is None else PreshuffledScale(a_scale, groups(k), tile_k)
    return gemm_aquant(a_q, b, scale, out_dtype=out_dtype, kernel=kernel)


def _fake(
    a: Any,
    b: Any,
    a_scale: Any,
    *,
    out_dtype: Any = None,
    int4_order: str | None = None,
    tile_k: int | None = None,
    kernel: str | None = None,
) -> Any:
    torch._check(b.dim() == 2, lambda: f"B has {b.dim()} dimensions: needed 2, [K, N]")
    if int4_order is None:
        torch._check(a.dim() == 2, lambda: f"A has {a.dim()} dimensions: needed 2, [M, K]")
        torch._check(a.shape[1] == b.shape[0], lambda: f"A is {tuple(a.shape)}, B {tuple(b.shape)}: their K differ")
    m = a.shape[0] if int4_order is None else a_scale.shape[0 if tile_k is None else 1]
    # A kernel named outright may have another output than float16; its name says which.
    named = next((dtype for end, dtype in _OUTPUTS.items() if kernel and kernel.endswith(end)), torch.float16)
    return b.new_empty((m, b.shape[1]), dtype=out_dtype or named)


_OUTPUTS = {"_outbf16": torch.bfloat16, "_outf32": torch.float32}

for key in ("CUDA", "CPU"):
    LIBRARY.impl("gemm_aquant", _gemm_aquant, key)
torch.library.register_fake("gemmill::gemm_aquant", _fake, lib=LIBRARY)
