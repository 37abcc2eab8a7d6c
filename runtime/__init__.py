"""gemmill: block-scaled FP8 and int4 GEMM kernels from a verified cache.

The public names below are imported on first use, so that ``import gemmill`` costs nothing and tools that need
no arrays never load numpy.

>>> import gemmill
>>> a_q, a_scale = gemmill.quantize_a(x, "fp8")
>>> c = gemmill.gemm_aquant(a_q, b, a_scale)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gemmill.api import gemm_aquant
    from gemmill.cache import Cache
    from gemmill.errors import (
        ArgumentError,
        CorruptObject,
        CorruptObjectWarning,
        DeviceError,
        GemmillError,
        KernelNotFound,
        Refused,
        UnsupportedError,
    )
    from gemmill.loader import Kernel, load
    from gemmill.operands import Fp8Matrix, Int4Matrix, PreshuffledScale, preshuffle_scale
    from gemmill.quantize import quantize_a
    from gemmill.reference import error_bound, reference_gemm_aquant
    from gemmill.selftest import run_selftest

__all__ = [
    "ArgumentError",
    "Cache",
    "CorruptObject",
    "CorruptObjectWarning",
    "DeviceError",
    "Fp8Matrix",
    "GemmillError",
    "Int4Matrix",
    "Kernel",
    "KernelNotFound",
    "PreshuffledScale",
    "Refused",
    "UnsupportedError",
    "error_bound",
    "gemm_aquant",
    "load",
    "preshuffle_scale",
    "quantize_a",
    "reference_gemm_aquant",
    "run_selftest",
]

_HOME = {
    "Cache": "cache",
    "Fp8Matrix": "operands",
    "Int4Matrix": "operands",
    "Kernel": "loader",
    "PreshuffledScale": "operands",
    "error_bound": "reference",
    "gemm_aquant": "api",
    "load": "loader",
    "preshuffle_scale": "operands",
    "quantize_a": "quantize",
    "reference_gemm_aquant": "reference",
    "run_selftest": "selftest",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
