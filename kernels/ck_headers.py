"""Composable Kernel's headers: where they are, which they are, and what they offer.

Its tile templates change from release to release, and their version number does not tell: so what matters is read from
the text. A template's parameters are found by name, and each gets its argument by name (`Headers.arguments`), wherever
it stands in the list and whether or not it is there; one that has no default and no argument of ours refuses the
headers, with its name.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmill.errors import UnsupportedError

from kernels.hip_headers import digest_tree, rocm_root

VARIABLE = "CK_INCLUDE"
PACKAGE = "aiter_meta"  # of the distribution amd-aiter
_IN_PACKAGE = "3rdparty/composable_kernel/include"
_MARK = Path("ck_tile/ops/gemm_quant.hpp")

_INSTALL = (
    f"set {VARIABLE} to the include directory of a Composable Kernel from October 2025 or later, install it below "
    "$ROCM_PATH (/opt/rocm), or `.venv/bin/pip install --no-deps amd-aiter` (the extra `ck`), which carries it"
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """One template parameter: its name without the trailing underscore, and its default or None."""

    name: str
    default: str | None


@dataclass(frozen=True)
class Headers:
    """One copy of Composable Kernel's headers.

    Attributes
    ----------
    root : Path
        The include directory.
    origin : str
        What led there.
    """

    root: Path
    origin: str

    @functools.cached_property
    def digest(self) -> str:
        """Digest of names and contents of everything below ck_tile/, wherever it lies; enters the key."""
        return digest_tree(self.root / "ck_tile", "*.hpp")

    def text(self, path: str) -> str:
        """Return a header without its comments; empty where there is none."""
        return _read(self.root / "ck_tile" / path)

    def find(self, pattern: str, folder: str) -> bool:
        """Tell whether a regular expression matches in any header below a folder."""
        return any(re.search(pattern, _read(path)) for path in sorted((self.root / "ck_tile" / folder).rglob("*.hpp")))

    def parameters(self, template: str, path: str) -> list[Parameter]:
        """Return the parameters of a class or alias template that a header defines.

        Raises
        ------
        UnsupportedError
            If it does not.
        """
        text = self.text(path)
        match = re.search(rf">\s*(?:struct|class|using)\s+{template}\b(?!\s*;)", text)
        start = text.rfind("template", 0, match.start()) if match else -1
        if match is None or start < 0:
            raise UnsupportedError(
                f"the Composable Kernel in {self.root} has no {template} in ck_tile/{path}; {_INSTALL}"
            )
        inside = text[text.index("<", start) + 1 : match.start()]
        return [_parameter(part) for part in _split(inside)]

    def arguments(self, template: str, path: str, known: Mapping[str, str]) -> str:
        """Return ``Template<argument, ...>``, every parameter given by its name.

        Raises
        ------
        UnsupportedError
            If a parameter without a default is none of `known`.
        """
        parameters = self.parameters(template, path)
        last = max((i for i, one in enumerate(parameters) if one.name in known), default=-1)
        given: list[str] = []
        values: dict[str, str] = {}
        for i, one in enumerate(parameters):
            if one.name in known:
                value = known[one.name]
            elif one.default is None:
                raise UnsupportedError(
                    f"{template} of the Composable Kernel in {self.root} takes {one.name}, which gemmill does not "
                    f"know; known are {', '.join(known)}"
                )
            elif i > last:
                break  # the rest have their defaults
            else:
                value = re.sub(r"\b(\w+)_\b", lambda m: values.get(m[1], m[0]), one.default)
            values[one.name] = value
            given.append(value)
        return f"{template}<{', '.join(given)}>"


def find_headers() -> Headers:
    """Return the headers to use: those of CK_INCLUDE, else of ROCm, else of the Python package amd-aiter.

    Raises
    ------
    UnsupportedError
        If there are none, or those that CK_INCLUDE names are too old.
    """
    looked = []
    for origin, root in _places():
        if (root / _MARK).is_file():
            return Headers(root, origin)
        has_some = (root / "ck_tile/core.hpp").is_file()
        looked.append(f"{root} ({origin}): {'too old, it has no' if has_some else 'no'} {_MARK}")
    raise UnsupportedError(
        f"no headers of Composable Kernel with block-scaled GEMMs; looked in {'; '.join(looked)}; {_INSTALL}"
    )


def _places() -> Iterator[tuple[str, Path]]:
    given = os.environ.get(VARIABLE)
    if given:
        yield VARIABLE, Path(given).expanduser().absolute()
        return
    yield "ROCm", rocm_root() / "include"
    for folder in _package():
        yield "amd-aiter", Path(folder) / _IN_PACKAGE


def _package() -> list[str]:
    spec = importlib.util.find_spec(PACKAGE)
    return list(spec.submodule_search_locations or ()) if spec else []


def _read(path: Path) -> str:
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return _read_once(path, info.st_size, info.st_mtime_ns)


@functools.cache
def _read_once(path: Path, size: int, time: int) -> str:
    return _COMMENT.sub(" ", path.read_text(encoding="utf-8", errors="replace"))


def _parameter(text: str) -> Parameter:
    declaration, equals, default = text.partition("=")
    return Parameter(declaration.split()[-1].rstrip("_"), " ".join(default.split()) if equals else None)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that stand in no bracket."""
    depth, start = 0, 0
    for i, sign in enumerate(text):
        depth += (sign in "<({") - (sign in ">)}")
        if sign == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]
