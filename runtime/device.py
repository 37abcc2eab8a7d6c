"""What this machine has: its CPU by name, its GPUs, and why an arch does not run here."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from gemmill.arch import Arch, find_arch, why_not_host


def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the CPU's name, the machine's where the system gives none."""
    try:
        with Path(cpuinfo).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                label, _, value = line.partition(":")
                if label.strip() in ("model name", "Model") and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.machine()


def hip_archs(topology: str = "/sys/class/kfd/kfd/topology/nodes") -> list[str]:
    """Return the archs of the AMD GPUs that the kernel driver shows, such as ``gfx942``, each once.

    Its ``gfx_target_version`` is major * 10000 + minor * 100 + stepping in decimal; 0 is a CPU. The name ends in the
    stepping as a hexadecimal digit: 90010 is gfx90a.
    """
    archs: dict[str, None] = {}
    for path in sorted(Path(topology).glob("*/properties")):
        try:
            lines = path.read_text(encoding="ascii").splitlines()
            version = next((int(line.split()[1]) for line in lines if line.startswith("gfx_target_version ")), 0)
        except (OSError, ValueError, IndexError):
            continue
        if version:
            archs[f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"] = None
    return list(archs)


def why_no_hip_device(arch: Arch) -> str | None:
    """Say why no AMD GPU here runs `arch`; None where one does."""
    found = hip_archs()
    if arch.name in found:
        return None
    return f"no {arch.name} device here: the driver shows {', '.join(found) or 'no AMD GPU'}"


def gpu_name(arch: str) -> str | None:
    """Return the name of the GPU here that runs an arch's kernels; None for a CPU arch, and where none is here."""
    row = find_arch(arch)
    if row.backend == "hip":
        return row.name if row.name in hip_archs() else None
    if row.backend != "cuda":
        return None
    from gemmill.cuda import NoDriver, find_device

    try:
        device = find_device(row)
    except NoDriver:
        return None
    return device.name if device else None


def _why_not_cuda(arch: Arch) -> str | None:
    from gemmill.cuda import why_not_cuda  # only who asks pays for ctypes

    return why_not_cuda(arch)


# What says, for each backend, why an arch of it does not run here.
BACKENDS: dict[str, Callable[[Arch], str | None]] = {
    "cpu": why_not_host,
    "cuda": _why_not_cuda,
    "hip": why_no_hip_device,
}


def why_arch_not_here(arch: Arch) -> str | None:
    """Say why this machine runs no kernel of `arch`: its device or a CPU feature is missing. None where it does."""
    return BACKENDS[arch.backend](arch)
