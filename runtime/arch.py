"""The arch table: one row per exact target, shared by the build side and the runtime.

A name matches a row exactly, after the feature suffixes that AMD drivers append
(``gfx942:sramecc+:xnack-``) are cut. There is no default GPU arch and no prefix matching:
``sm_90`` is not ``sm_90a``.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass, field
from pathlib import Path

from gemmill.errors import ArgumentError

# Feature names as Linux prints them in /proc/cpuinfo; levels from the x86-64 psABI, section 3.1.1.
# The kernel clears a flag whose register state it does not save, so XGETBV needs no check of its own.
_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_V4_BF16 = (*_V4, "avx512_bf16", "avx512vbmi")


@dataclass(frozen=True)
class FixedPointSum:
    """How a matrix instruction adds products that are wider than its adder.

    `terms` products and the sum so far are aligned to the largest exponent among them (of a product: the sum of its
    factors' exponents), each is cut toward zero to `bits` fraction bits below it, and what is left is added exactly;
    the result is cut to `bits` fraction bits of its own.
    """

    terms: int
    bits: int


@dataclass(frozen=True)
class Arch:
    """One exact target.

    Attributes
    ----------
    name : str
        As it appears in task names, index paths and manifests.
    backend : str
        What builds and launches for it: ``cpu``, ``cuda`` or ``hip``.
    encoding : str
        fp8 encoding: ``ocp`` (e4m3fn, e5m2) or ``fnuz`` (e4m3fnuz, e5m2fnuz).
    warp_tile_k : int
        K of one matrix instruction; the third number of a kernel's warp tile follows from it.
    warp_tile_k_preshuffle : int
        The same for preshuffled AQ with two or more groups per tile, where two instructions are chained.
    machine : str
        What ``platform.machine()`` must say to run it; empty where any will do.
    cpu_features : tuple of str
        Instruction-set bits the host must have (``/proc/cpuinfo`` names).
    flags : tuple of str
        Compiler flags that select the target (CPU).
    product_sum : FixedPointSum or None
        How the matrix instruction sums within a group; None where that is float32 arithmetic.
    """

    name: str
    backend: str
    encoding: str
    warp_tile_k: int
    warp_tile_k_preshuffle: int
    machine: str = ""
    cpu_features: tuple[str, ...] = field(default=(), repr=False)
    flags: tuple[str, ...] = field(default=(), repr=False)
    product_sum: FixedPointSum | None = field(default=None, repr=False)


def _cpu(name: str, warp_tile_k: int, features: tuple[str, ...], *flags: str) -> Arch:
    machine = "x86_64" if features else ""
    return Arch(name, "cpu", "ocp", warp_tile_k, warp_tile_k, machine, features, flags)


# Best CPU arch last: host_archs() relies on the order.
ARCHS: dict[str, Arch] = {
    row.name: row
    for row in (
        _cpu("generic", 1, ()),
        _cpu("x86-64-v3", 1, _V3, "-march=x86-64-v3"),
        _cpu("x86-64-v4", 1, _V4, "-march=x86-64-v4"),
        # vdpbf16ps sums two products a lane.
        _cpu("x86-64-v4-bf16", 2, _V4_BF16, "-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi"),
        # wgmma on 8-bit operands, as several published studies found it bit by bit; NVIDIA documents nothing of it.
        Arch("sm_90a", "cuda", "ocp", 32, 32, product_sum=FixedPointSum(terms=32, bits=13)),
        Arch("gfx90a", "hip", "fnuz", 32, 64),
        Arch("gfx942", "hip", "fnuz", 32, 64),
        Arch("gfx950", "hip", "ocp", 128, 128),
    )
}


def find_arch(name: str) -> Arch:
    """Return the row called `name`; AMD feature suffixes after ``:`` are ignored.

    Raises
    ------
    ArgumentError
        If no row has that name; the text lists those that exist.
    """
    base, _, suffix = str(name).partition(":")
    row = ARCHS.get(base)
    if row is None or (suffix and row.backend != "hip"):
        raise ArgumentError(f"unknown arch {name!r}: known archs are {', '.join(ARCHS)}")
    return row


@functools.cache
def host_features(cpuinfo: str = "/proc/cpuinfo") -> frozenset[str]:
    """Return the instruction-set bits of this host's CPU, empty where the system does not list them."""
    try:
        # The first CPU's lines are enough, and with many CPUs the whole file takes milliseconds.
        with Path(cpuinfo).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                label, _, value = line.partition(":")
                if label.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def why_not_host(arch: Arch, cpuinfo: str = "/proc/cpuinfo") -> str | None:
    """Say why this host's CPU can't run `arch`; None where it can.

    Only for the ``cpu`` backend: whether a GPU is there, its backend's driver says.
    """
    if arch.machine and platform.machine() != arch.machine:
        return f"{arch.name} needs a {arch.machine} host, this one is {platform.machine()}"
    missing = [bit for bit in arch.cpu_features if bit not in host_features(cpuinfo)]
    if missing:
        return f"{arch.name} needs CPU features this host lacks: {' '.join(missing)}"
    return None


def host_archs(cpuinfo: str = "/proc/cpuinfo") -> list[Arch]:
    """Return the CPU archs that this host can run, best first."""
    rows = [row for row in ARCHS.values() if row.backend == "cpu" and why_not_host(row, cpuinfo) is None]
    return rows[::-1]
