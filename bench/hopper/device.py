"""Measuring on the GPU: each contender a CUDA graph of many calls, replayed in turn with the others."""

from __future__ import annotations

import gc
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper.cases import Case
from hopper.contenders import Contender, Refused, own
from hopper.numerics import errors
from hopper.operands import ROTATED_BYTES, Operands
from hopper.peers import TOLERANCE, deviation, peers
from hopper.results import ARCH, Row

if TYPE_CHECKING:
    import torch

REPLAYS = 20
_GRAPH_US = 1000  # a graph takes at least about this long, so that starting it does not count
_SLOW, _SLOW_REPLAYS = 1.5, 3  # contenders that take so many times the best one's time are replayed less often

_SMI = "driver_version,power.limit,power.draw,temperature.gpu,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem"
_LOADED_FLOPS = 1e12  # cases so large that nvidia-smi can look at the clocks meanwhile


class DeviceLost(Exception):
    """The context is broken: nothing more can be measured in this process."""


@dataclass
class Entrant:
    """A contender that gave the right product, its graph, and its times in µs a call."""

    contender: Contender
    deviation: float
    graph: torch.cuda.CUDAGraph
    times: list[float]


class Device:
    """The H200 and a cache of kernels.

    Parameters
    ----------
    cache : Path
        Whose sm_90a kernels are timed.
    with_peers : bool
        Whether cuBLASLt and Triton run beside them.
    """

    def __init__(self, cache: Path, with_peers: bool = True) -> None:
        import torch

        self._cache, self._with_peers = cache.absolute(), with_peers
        self._under_load: dict[str, dict[str, str]] = {}
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            raise SystemExit("no Hopper GPU: needed compute capability 9.0, as PyTorch sees it")
        torch.backends.cuda.matmul.allow_tf32 = False  # float32 is what results are checked against

    def measure(self, case: Case) -> list[Row]:
        """Return a row for everything that takes part at a case.

        Raises
        ------
        DeviceLost
            If a contender broke the CUDA context.
        """
        import torch

        x = Operands(case)
        calls = calls_of(case, x.sets)
        rows: list[Row] = []
        entrants: list[Entrant] = []
        for contender in [*own(self._cache, x), *(peers(x) if self._with_peers else ())]:
            try:
                entrants.append(_enter(contender, x, calls))
            except Exception as error:
                rows.append(_failed(case, contender, error))
                try:
                    torch.cuda.synchronize()
                except RuntimeError as sticky:
                    raise DeviceLost(f"{contender.kernel or contender.peer} at {case.label}: {sticky}") from error
        asked = _ask_clocks() if case.flops > _LOADED_FLOPS else None
        _race(entrants, calls)
        if asked:
            self._under_load[case.label] = _answer(asked)
        rows += [_row(case, entrant, calls) for entrant in entrants]
        del entrants, x
        gc.collect()  # graphs hold memory
        torch.cuda.empty_cache()
        return rows

    def numerics(self) -> list[dict[str, Any]]:
        """Return errors against float64 (hopper.numerics)."""
        return errors(self._cache)

    def machine(self) -> dict[str, Any]:
        """Return what was measured on."""
        import torch

        found: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": _triton_version(),
            "card": torch.cuda.get_device_name(),
            "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        }
        return {**found, **_answer(_ask_clocks())}

    def clocks(self) -> dict[str, Any]:
        """Return what nvidia-smi says of driver, clocks and power now, and said while large cases ran."""
        return {**_answer(_ask_clocks()), "under_load": self._under_load}

    @staticmethod
    def method() -> dict[str, Any]:
        """Return how it was timed, for the record."""
        return {
            "replays": REPLAYS,
            "statistic": "median",
            "rotated_input_bytes": ROTATED_BYTES,
            "note": "calls of one contender follow each other in a CUDA graph, each with the next set of operands; "
            "the graphs of all contenders are replayed in turn; contenders slower than "
            f"{_SLOW} times the best are replayed {_SLOW_REPLAYS} times",
        }


def calls_of(case: Case, sets: int) -> int:
    """Return the calls of a graph: every set as often as the others, long enough for the clock."""
    expected_us = max(case.bytes / 3.5e6, case.flops / 1.2e9) + 2
    return sets * max(1, round(_GRAPH_US / (expected_us * sets)))


def _enter(contender: Contender | Refused, x: Operands, calls: int) -> Entrant:
    """Check a contender's product, and capture its graph."""
    import torch

    if isinstance(contender, Refused):
        raise RuntimeError(contender.reason)
    x.c[0].fill_(0xFF)  # NaN
    contender.call(0)  # also loads and compiles what a capture must not
    torch.cuda.synchronize()
    off = deviation(contender.output(0), x.expected(contender.scaled))
    if not off < TOLERANCE:
        raise RuntimeError(f"a wrong product: off by {off:.3g} of its norm")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for i in range(calls):
            contender.call(i % x.sets)
    return Entrant(contender, off, graph, [])


def _race(entrants: list[Entrant], calls: int) -> None:
    """Replay the graphs in turn, so that all see the same clocks."""
    if not entrants:
        return
    for entrant in entrants:
        entrant.graph.replay()
    _replay(entrants, calls)
    best = min(entrant.times[0] for entrant in entrants)
    fast = [entrant for entrant in entrants if entrant.times[0] <= _SLOW * best]
    for i in range(REPLAYS - 1):
        _replay(entrants if i < _SLOW_REPLAYS - 1 else fast, calls)


def _replay(entrants: list[Entrant], calls: int) -> None:
    import torch

    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in entrants]
    for entrant, (start, stop) in zip(entrants, events, strict=True):
        start.record()
        entrant.graph.replay()
        stop.record()
    torch.cuda.synchronize()
    for entrant, (start, stop) in zip(entrants, events, strict=True):
        entrant.times.append(start.elapsed_time(stop) * 1e3 / calls)


def _row(case: Case, entrant: Entrant, calls: int) -> Row:
    who, times = entrant.contender, entrant.times
    return Row(
        *(ARCH, case.variant, case.layout, *case.shape),
        *(who.kernel, who.peer, who.detail, who.tile),
        *(round(value, 4) for value in (statistics.median(times), min(times), max(times))),
        *(len(times), calls, entrant.deviation),
    )


def _failed(case: Case, who: Contender | Refused, error: Exception) -> Row:
    text = f"{type(error).__name__}: {error}"[:2000]
    return Row(ARCH, case.variant, case.layout, *case.shape, who.kernel, who.peer, who.detail, error=text)


def _ask_clocks() -> subprocess.Popen[str] | None:
    try:
        command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader", "--id=0"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _answer(asked: subprocess.Popen[str] | None) -> dict[str, str]:
    """Return what nvidia-smi said by name; nothing where it is not there or does not know."""
    if asked is None:
        return {}
    try:
        said = asked.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        asked.kill()
        said = asked.communicate()[0]
    names, values = _SMI.split(","), [word.strip() for word in said.split(",")]
    return dict(zip(names, values, strict=True)) if len(names) == len(values) else {}


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)
