"""What the device tests' choice of kernels must know; the tests themselves need a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from checks import CHECKS

from kernels.catalogue import load_catalogue
from kernels.codegen import Codegen
from kernels.paths import CHECKOUT, Paths


def test_all_kernels_that_copy_ahead_are_checked(tmp_path: Path) -> None:
    by = next(check.by for check in CHECKS if check.name == "conversion")
    codegen = Codegen(Paths.of(CHECKOUT.root, build=tmp_path))
    for config in load_catalogue().configs("sm_90a", out=None):
        fields = {name: getattr(config, name) for name in ("family", "tile", "layout", "variant")}
        checked = by(SimpleNamespace(name=config.name, config=fields)) is not None
        assert checked == ("bool converts = true" in codegen.generate(config).read_text()), config.id
