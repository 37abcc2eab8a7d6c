"""Render a kernel's source. Full text follows; the interface is what stands here."""

from __future__ import annotations

from pathlib import Path

from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths


class Codegen:
    """Generates sources of one checkout.

    A generated file's first line is a stamp: what it was rendered from, and a digest of the rest. So a file is its
    own memo, an edited or truncated one is noticed, and a run with nothing to render imports no Jinja2.
    """

    def __init__(self, paths: Paths = CHECKOUT) -> None:
        self.paths = paths

    def path(self, config: KernelConfig) -> Path:
        """Return where a kernel's source is generated: ``build/generated/<arch>/<name>.cpp``."""
        return self.paths.generated / config.arch / f"{config.name}.cpp"

    def is_current(self, config: KernelConfig) -> bool:
        """Tell whether the generated file is whole and rendered from what is there now."""
        raise NotImplementedError

    def generate(self, config: KernelConfig) -> Path:
        """Render the source unless it is current, write it atomically, and return its path."""
        raise NotImplementedError
