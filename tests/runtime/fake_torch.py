"""As much of torch as gemmill.on_torch asks for CUDA tensors, over host memory that says it is a device's."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np


class DType:
    """torch.float16 and so on: one object a type."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))


class Tensor:
    """A numpy array that says it lies on a CUDA device."""

    def __init__(self, x: np.ndarray, index: int = 0, dtype: DType | None = None) -> None:
        self.x, self.index = x, index
        self.dtype = dtype or DTYPES[x.dtype.name]
        self.layout = "torch.strided"
        self.device = SimpleNamespace(type="cuda", index=index)
        self.keys = "CUDA"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.x.itemsize for step in self.x.strides)

    def element_size(self) -> int:
        return self.x.itemsize

    def get_device(self) -> int:
        return self.index

    def data_ptr(self) -> int:
        return self.x.ctypes.data

    def detach(self) -> Tensor:
        return self

    def t(self) -> Tensor:
        return Tensor(self.x.T, self.index)

    def clone(self, memory_format: str) -> Tensor:
        return Tensor(np.ascontiguousarray(self.x), self.index)

    def expand(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(np.broadcast_to(self.x, shape), self.index)

    def zero_(self) -> Tensor:
        self.x[...] = 0
        return self


class TensorGuards:
    """torch._C._dynamo.guards.TensorGuards, as gemmill.guards uses it."""

    def __init__(self, *tensors: Tensor, dynamic_dims_sizes: list[Any], dynamic_dims_strides: list[Any]) -> None:
        self.known = [self.seen(x) for x in tensors]
        assert dynamic_dims_sizes == [list(x.shape) for x in tensors]
        assert dynamic_dims_strides == [list(x.stride()) for x in tensors]

    @staticmethod
    def seen(x: Any) -> Any:
        return isinstance(x, Tensor) and (type(x), x.dtype, x.index, x.keys, x.shape, x.stride())

    def check(self, *tensors: Any) -> bool:
        if len(tensors) != len(self.known):
            raise TypeError("wrong length")
        return [self.seen(x) for x in tensors] == self.known


NAMES = ("float16", "bfloat16", "float32", "float64", "uint8", "float8_e4m3fn", "float8_e5m2")
DTYPES = {name: DType(name) for name in NAMES}


def fake_torch(guards: bool = True) -> Any:
    """Return the module, with TensorGuards or without; `state` holds current device, streams, what was asked,
    and the most elements that one allocation gets.
    """
    torch = ModuleType("torch")
    state = SimpleNamespace(device=0, streams={0: 0, 2: 0}, entered=[], allocated=[], most=1 << 30)

    @contextmanager
    def device(index: int) -> Any:
        before, state.device = state.device, index
        state.entered.append(index)
        try:
            yield
        finally:
            state.device = before

    def empty(shape: Any, dtype: DType, device: Any = None) -> Tensor:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        index = int(device.rpartition(":")[2]) if isinstance(device, str) else device.index
        if np.prod(shape) > state.most:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: {shape}")
        state.allocated.append(shape)
        raw = np.full(max(1, int(np.prod(shape))) * dtype.numpy.itemsize + 256, 0xFF, np.uint8)
        raw = raw[-raw.ctypes.data % 256 :][: int(np.prod(shape)) * dtype.numpy.itemsize]
        return Tensor(raw.view(dtype.numpy).reshape(shape), index)

    for name, dtype in DTYPES.items():
        setattr(torch, name, dtype)
    torch.state = state  # type: ignore[attr-defined]
    torch.Tensor = Tensor  # type: ignore[attr-defined]
    torch.nn = SimpleNamespace(Parameter=type("Parameter", (Tensor,), {}))  # type: ignore[attr-defined]
    torch.strided = "torch.strided"  # type: ignore[attr-defined]
    torch.contiguous_format = "contiguous"  # type: ignore[attr-defined]
    torch.empty = empty  # type: ignore[attr-defined]
    torch.empty_like = lambda x: empty(x.shape, x.dtype, x.device)  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        device=device,
        current_device=lambda: state.device,
        OutOfMemoryError=type("OutOfMemoryError", (RuntimeError,), {}),
    )
    torch._C = SimpleNamespace(  # type: ignore[attr-defined]
        _cuda_getCurrentRawStream=lambda index: state.streams[index], _cuda_getDevice=lambda: state.device
    )
    if guards:
        torch._C._dynamo = SimpleNamespace(guards=SimpleNamespace(TensorGuards=TensorGuards))  # type: ignore[attr-defined]
    return torch
