"""Make sure that a command can print: a caller may have closed its streams, and a path may hold any bytes."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Replace closed streams by the null device, and escape what the terminal's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller wants the status alone
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
