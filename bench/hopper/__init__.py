"""The parts of bench/sm_90a.py: what is measured, how, and how it is shown.

They want the package gemmill of this checkout, installed or not.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def _use_checkout() -> None:
    folder = ROOT / "runtime"
    spec = spec_from_file_location("gemmill", folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec and spec.loader
    sys.modules["gemmill"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if "gemmill" not in sys.modules:
    _use_checkout()
