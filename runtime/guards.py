"""Whether tensors are like those that a plan was made for, asked of torch in one call.

Reading dtype, shape and strides of four tensors in Python takes about as long as launching a kernel. torch.compile
compares the same things each time it enters what it compiled, by a class in C++, which is borrowed here. It is not a
public one: where a torch has none, or another, tensors are compared by their attributes (gemmill.on_torch).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

try:
    _TensorGuards: Any = attrgetter("_dynamo.guards.TensorGuards")(torch._C)
except AttributeError:
    _TensorGuards = None


def guard_of(*tensors: Any) -> Callable[..., bool] | None:
    """Return what tells whether as many arguments are like these tensors; None where torch has nothing for it.

    Alike are objects of the same class with the same dtype, device, shape, strides and dispatch keys. What is no tensor
    is unlike any.
    """
    if _TensorGuards is None:
        return None
    try:
        # Both must be given: without them, torch 2.11 reads through a null pointer.
        guards = _TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(x.shape) for x in tensors],
            dynamic_dims_strides=[list(x.stride()) for x in tensors],
        )
    except (TypeError, ValueError, RuntimeError):
        return None
    check: Callable[..., bool] = guards.check
    return check
