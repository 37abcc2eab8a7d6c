"""Where the factory's own files lie; everything else takes these as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The directories of one checkout.

    Attributes
    ----------
    root : Path
        The checkout.
    templates, native : Path
        What kernels are made from.
    build : Path
        Generated sources and memos; may be deleted at any time.
    cache : Path
        The content-addressed cache.
    """

    root: Path
    templates: Path
    native: Path
    build: Path
    cache: Path

    @classmethod
    def of(cls, root: str | Path, cache: str | Path | None = None, build: str | Path | None = None) -> Paths:
        """Return the usual layout under `root`, with `cache` and `build` elsewhere when given."""
        base = Path(root).absolute()
        return cls(
            root=base,
            templates=base / "templates",
            native=base / "native",
            build=Path(build).absolute() if build else base / "build",
            cache=Path(cache).absolute() if cache else base / "cache",
        )

    @property
    def generated(self) -> Path:
        """Where codegen writes: ``<arch>/<name>.cpp``."""
        return self.build / "generated"


CHECKOUT = Paths.of(Path(__file__).parent.parent)
