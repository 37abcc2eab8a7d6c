"""HIP's headers, which Composable Kernel's include: where they are, and which they are."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gemmill.errors import UnsupportedError


@dataclass(frozen=True)
class HipHeaders:
    """The headers in `root`/include/hip.

    Attributes
    ----------
    root : Path
        What compilers call the ROCm path.
    """

    root: Path

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Version and digest; enters the key."""
        folder = self.root / "include" / "hip"
        text = (folder / "hip_version.h").read_text(encoding="utf-8")
        parts = [re.search(rf"define HIP_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
        return {"version": ".".join(part[1] if part else "?" for part in parts), "digest": digest_tree(folder, "*.h*")}


def find_hip() -> HipHeaders:
    """Return the HIP headers of ROCm, else of the system.

    Raises
    ------
    UnsupportedError
        If there are none.
    """
    roots = [rocm_root(), Path("/usr")]
    for root in roots:
        if (root / "include" / "hip" / "hip_runtime.h").is_file():
            return HipHeaders(root)
    looked = ", ".join(str(root / "include") for root in roots)
    raise UnsupportedError(
        f"no HIP headers: looked for hip/hip_runtime.h in {looked}; ROCm brings them, so does "
        "`apt install libamdhip64-dev`; ROCM_PATH names a directory with include/hip"
    )


def rocm_root() -> Path:
    """Return where ROCm is installed, if it is: ROCM_PATH, else /opt/rocm."""
    return Path(os.environ.get("ROCM_PATH") or "/opt/rocm")


def digest_tree(folder: Path, pattern: str) -> str:
    """Return a digest of the names and contents of the files below a folder that match a glob."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        if path.is_file():
            whole.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
