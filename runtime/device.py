"""What this machine has: its CPU by name, and signs of GPUs."""

from __future__ import annotations

import platform
from pathlib import Path

# Device files that a GPU driver makes, by backend.
_GPU_FILES = {"cuda": "/dev/nvidia0", "hip": "/dev/kfd"}


def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the CPU's name, the machine's where the system gives none."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        label, _, value = line.partition(":")
        if label.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.machine()


def gpu_drivers() -> dict[str, bool]:
    """Return for each GPU backend whether its driver shows a device here."""
    return {backend: Path(file).exists() for backend, file in _GPU_FILES.items()}
