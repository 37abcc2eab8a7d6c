"""Who is timed at a case: gemmill's own kernels of a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmill.cache import Cache, IndexEntry
from gemmill.loader import Kernel, load

from hopper.operands import Operands
from hopper.results import ARCH

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Contender:
    """Something that multiplies.

    Attributes
    ----------
    call : callable
        Launches the product of one set of operands on the current stream.
    output : callable
        Returns C of a set after such a call.
    scaled : bool
        Whether its product has AQ in it.
    """

    call: Callable[[int], None]
    output: Callable[[int], torch.Tensor]
    scaled: bool = True
    kernel: str | None = None
    peer: str | None = None
    detail: str = ""
    tile: list[int] | None = None


@dataclass(frozen=True)
class Refused:
    """A contender that can't take part, and why."""

    reason: str
    kernel: str | None = None
    peer: str | None = None
    detail: str = ""


def own(root: Path, operands: Operands) -> list[Contender | Refused]:
    """Return every kernel of a cache that takes the operands and gives float16."""
    found: list[Contender | Refused] = []
    for entry in _entries(root):
        config = entry.config
        if (config["variant"], config["layout"], config["out"]) == (operands.case.variant, operands.case.layout, "f16"):
            try:
                found.append(_contender(_load(root, entry.key), operands))
            except Exception as error:  # whatever one kernel does, the others are measured
                found.append(Refused(str(error), kernel=entry.name, detail=str(config["family"])))
    return found


@cache
def _entries(root: Path) -> list[IndexEntry]:
    return list(Cache(root).entries(ARCH))


@cache
def _load(root: Path, key: str) -> Kernel:
    return load(key, cache=root, allow_untested=True)


def _contender(kernel: Kernel, x: Operands) -> Contender:
    import torch

    case, tile = x.case, kernel.config["tile"]
    aq, ldaq = (x.shuffled(tile[2]), case.m * (tile[2] // 128)) if kernel.preshuffle else (x.aq, x.ldaq)
    size = kernel.library.workspace_bytes(*case.shape)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
    pointers: list[tuple[Any, ...]] = [
        (x.a[i].data_ptr(), aq[i].data_ptr(), x.b[i].data_ptr(), x.c[i].data_ptr()) for i in range(x.sets)
    ]
    rest = (*case.shape, x.lda, ldaq, x.ldb, x.ldc, workspace.data_ptr() if workspace is not None else None, size)
    library, stream = kernel.library, torch.cuda.current_stream

    def call(i: int, kept: Any = (aq, workspace)) -> None:  # `kept` holds the memory that the pointers name
        code = library.run(*pointers[i], *rest, stream().cuda_stream)
        if code:
            library.check(code)

    return Contender(
        call,
        lambda i: x.output(i, torch.float16),
        kernel=kernel.name,
        detail=str(kernel.config["family"]),
        tile=list(tile),
    )
