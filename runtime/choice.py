"""Which kernel a call gets, and why.

On CPUs the first that suits: best arch first, then the search path's order. On a GPU the fastest that any cache of the
search path has, by gemmill.selection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmill.arch import ARCHS, Arch
from gemmill.cache import Cache, IndexEntry
from gemmill.errors import KernelNotFound
from gemmill.loader import Candidate, Kernel, by_pattern, examine, explain_miss, first_usable
from gemmill.search import VARIABLE, CacheArgument, SearchPath

if TYPE_CHECKING:
    from gemmill.selection import Ranking, Shape

_MAX_SHELVES = 1024


@dataclass(frozen=True)
class Wanted:
    """What a kernel must be.

    Attributes
    ----------
    variant : str
    layouts : tuple of str
        Those that the operands fit, in order of preference.
    out : str
        Output kind.
    tile_k : int or None
        Of a preshuffled AQ.
    """

    variant: str
    layouts: tuple[str, ...]
    out: str = "f16"
    tile_k: int | None = None

    def suits(self, entry: IndexEntry) -> bool:
        """Tell whether an indexed kernel is one of these."""
        config = entry.config
        if config.get("variant") != self.variant or config.get("out") != self.out:
            return False
        if self.tile_k is not None:
            return takes_shuffled(config, entry.name, self.tile_k)
        return "_preshufflequant" not in entry.name

    def pattern(self, layout: str) -> str:
        """Return a glob that the names of these kernels match."""
        return f"gemm_aquant_{self.variant}_{layout}_*"

    def example(self, arch: str) -> str:
        """Return ARCH/NAME with a wildcard, for commands and errors."""
        return f"{arch}/{self.pattern(self.layouts[0])}" + ("" if self.out == "f16" else f"_out{self.out}")


def takes_shuffled(config: dict[str, Any], name: str, tile_k: int) -> bool:
    """Tell whether a kernel reads an AQ that is shuffled for `tile_k`."""
    tile = config.get("tile")
    return "_preshufflequant" in name and isinstance(tile, list) and tile[2:] == [tile_k]


# Chosen kernels by what the choice depends on, so that a new shape costs no search.
_chosen: dict[tuple[Any, ...], Kernel] = {}

# On a GPU the shape decides: the indexed kernels to choose among, and those of them that are open, by key.
_shelves: dict[tuple[Any, ...], list[tuple[Cache, IndexEntry]]] = {}
_open: dict[str, Kernel] = {}


def forget() -> None:
    """Forget the kernels found and chosen so far; those that are loaded stay loaded."""
    for memory in (_chosen, _shelves, _open):
        memory.clear()


def remembered(key: tuple[Any, ...], choose: Callable[[], Kernel]) -> Kernel:
    """Return the kernel that was chosen for `key` before, or choose it."""
    key = (*key, os.environ.get(VARIABLE))
    try:
        kernel = _chosen.get(key)
    except TypeError:  # an unhashable argument, which choose() refuses by name
        return choose()
    if kernel is None:
        kernel = _chosen[key] = choose()
    return kernel


def choose_kernel(wanted: Wanted, shape: Shape, archs: list[Arch], allow_untested: bool) -> Kernel:
    """Return the best usable kernel of these archs, best first.

    Raises
    ------
    KernelNotFound
        If there is none; the text lists what was searched and refused, and the build command.
    """
    if all(arch.backend == "cpu" for arch in archs):
        names = tuple(arch.name for arch in archs)
        return remembered((wanted, names, allow_untested), lambda: _first(wanted, names, allow_untested))
    return _fastest(wanted, shape, archs[0].name, allow_untested)


def _first(wanted: Wanted, archs: tuple[str, ...], allow_untested: bool) -> Kernel:
    places = SearchPath()

    def candidates() -> Iterator[Candidate]:
        for arch in archs:
            for layout in wanted.layouts:
                yield from by_pattern(places, [arch], wanted.pattern(layout), allow_untested, wanted.suits)

    kernel, refused = first_usable(candidates())
    if kernel is not None:
        return kernel
    raise KernelNotFound(explain_miss(wanted.example(archs[0]), places, refused))


def _fastest(wanted: Wanted, shape: Shape, arch: str, allow_untested: bool) -> Kernel:
    from gemmill.selection import rank  # only a GPU's kernels need it

    refused: list[Candidate] = []
    for layout in wanted.layouts:
        key = (wanted, arch, layout, allow_untested, os.environ.get(VARIABLE))
        shelf = _shelves.get(key) or list(_indexed(SearchPath(), arch, wanted, layout))
        for cache, entry in _sorted(shelf, rank(arch, wanted.variant, layout, shape)):
            kernel = _open.get(entry.key)
            if kernel is None:
                kernel, passed_over = first_usable([examine(cache, entry.key, entry, allow_untested)])
                refused += passed_over
            if kernel is not None:
                _open[entry.key] = kernel
                gone = {candidate.key for candidate in refused}
                if len(_shelves) >= _MAX_SHELVES:
                    _shelves.clear()
                _shelves[key] = [(place, one) for place, one in shelf if one.key not in gone]
                return kernel
    raise KernelNotFound(explain_miss(wanted.example(arch), SearchPath(), refused))


def _indexed(places: SearchPath, arch: str, wanted: Wanted, layout: str) -> Iterator[tuple[Cache, IndexEntry]]:
    for place in places:
        if place.root is not None:
            cache = Cache(place.root)
            for entry in cache.entries(arch, wanted.pattern(layout)):
                if wanted.suits(entry) and _is_tile(entry.config.get("tile")):
                    yield cache, entry


def _is_tile(tile: Any) -> bool:
    return isinstance(tile, list) and len(tile) == 3 and all(type(x) is int and x > 0 for x in tile)


def _sorted(shelf: list[tuple[Cache, IndexEntry]], ranking: Ranking) -> list[tuple[Cache, IndexEntry]]:
    """Sort by preference; of one name, the first on the search path stays first."""
    return sorted(shelf, key=lambda one: ranking.key(one[1].name, one[1].config["tile"]))


def explain_choice(wanted: Wanted, shape: Shape, arch: str, cache: CacheArgument = None) -> str:
    """Say which kernel a problem gets on a device of `arch`, in which order all are preferred, and why.

    Parameters
    ----------
    wanted : Wanted
        With one layout.
    shape : (int, int, int)
        M, N, K, each above 0.
    arch : str
    cache : path-like, Cache or sequence of them, optional
        Look here; else the search path.
    """
    from gemmill.selection import rank, schedule_of

    (layout,) = wanted.layouts
    places = SearchPath(cache)
    ranking = rank(arch, wanted.variant, layout, shape)
    if ARCHS[arch].backend == "cpu":
        found = [(c.name, c) for c in by_pattern(places, [arch], wanted.pattern(layout), suits=wanted.suits)]
    else:
        shelf = _sorted(list(_indexed(places, arch, wanted, layout)), ranking)
        found = [(entry.name, examine(place, entry.key, entry, any_device=True)) for place, entry in shelf]
    m, n, k = shape
    lines = [f"{arch}, {wanted.variant}, {layout}, {wanted.out} output: M, N, K = {m}, {n}, {k}", _why(ranking)]
    chosen = False
    for name, candidate in found:
        verdict = f"refused: {candidate.refusal}" if candidate.refusal else "usable" if chosen else "chosen"
        chosen = chosen or not candidate.refusal
        lines.append(f"  {_figure(ranking, name, candidate):>22}  {name}  {verdict}")
    lines += _missing(ranking, wanted, layout, {schedule_of(name) for name, _ in found})
    if not chosen:
        lines.append(f"no usable kernel; build it with ./mill 'selftest:{wanted.example(arch)}'")
    return "\n".join(lines)


def _why(ranking: Ranking) -> str:
    if ARCHS[ranking.arch].backend == "cpu":
        return "on CPUs the first on the search path is taken"
    from gemmill.selection import load_table

    table = load_table(ranking.arch)
    if ranking.row is None:
        return "nothing was measured near this shape: by the estimate of clocks a k"
    measured = ", ".join(str(value) for value in table.measured.values()) if table else ""
    return f"by the times at {ranking.row} [{measured}]; what was not measured there comes last, by the estimate"


def _figure(ranking: Ranking, name: str, candidate: Candidate) -> str:
    time = ranking.time(name)
    if time is not None:
        return f"{time:.1f} µs"
    if ARCHS[ranking.arch].backend == "cpu" or candidate.object is None:
        return ""
    return f"estimate {ranking.key(name, candidate.object.manifest['config']['tile'])[1]:.1f}"


def _missing(ranking: Ranking, wanted: Wanted, layout: str, found: set[str]) -> list[str]:
    """Name the kernels that were measured for such a problem, and that no cache has."""
    lines = []
    for schedule, time in ranking.row.times.items() if ranking.row else ():
        shuffled = schedule.endswith("_preshufflequant")
        if schedule not in found and shuffled == (wanted.tile_k is not None):
            name = replace(wanted, layouts=(layout,)).pattern(layout).removesuffix("*") + schedule
            name += "" if wanted.out == "f16" else f"_out{wanted.out}"
            lines.append(f"  {f'{time:.1f} µs':>22}  {name}  in no cache: ./mill 'selftest:{ranking.arch}/{name}'")
    return lines
