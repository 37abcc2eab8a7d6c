"""Random configs: every field that a config has, in every combination that it accepts."""

from __future__ import annotations

import dataclasses
from typing import Any

from gemmill.arch import ARCHS
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS
from gemmill.variant import OUTPUTS, VARIANTS
from hypothesis import strategies as st

from kernels.config import FAMILIES, KernelConfig, derive_warp_tile_k

_SMALL = st.integers(1, 9)


@st.composite
def configs(draw: st.DrawFn, archs: tuple[str, ...] = tuple(ARCHS)) -> KernelConfig:
    """Draw a valid config."""
    arch, family = draw(st.sampled_from(archs)), draw(st.sampled_from(sorted(FAMILIES)))
    preshuffle = FAMILIES[family].preshuffle
    layout = draw(st.sampled_from([row.name for row in LAYOUTS.values() if not (preshuffle and row.aq_col)]))
    warps, warp_tile = (draw(_SMALL), draw(_SMALL), 1), (draw(_SMALL), draw(_SMALL))
    tile = (warps[0] * warp_tile[0] * draw(_SMALL), warps[1] * warp_tile[1] * draw(_SMALL), 128 * draw(_SMALL))
    return KernelConfig(
        arch=arch,
        variant=draw(st.sampled_from(sorted(VARIANTS))),
        layout=layout,
        family=family,
        tile=tile,
        warps=warps,
        warp_tile=(*warp_tile, derive_warp_tile_k(ARCHS[arch], FAMILIES[family], tile[2])),
        out=draw(st.sampled_from(sorted(OUTPUTS))),
    )


def neighbours(config: KernelConfig) -> list[KernelConfig]:
    """Return the valid configs that differ from `config` in exactly one field, one value of each kind of change."""
    m, n, k = config.tile
    other: dict[str, list[Any]] = {
        "arch": list(ARCHS),
        "variant": list(VARIANTS),
        "layout": list(LAYOUTS),
        "family": list(FAMILIES),
        "tile": [(m * 2, n, k), (m, n * 2, k), (m, n, k + 128), (m, n, k + 64), (n, m, k)],
        "warps": [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (*config.warps[1::-1], 1)],
        "warp_tile": [(1, 1, w) for w in (1, 2, 32, 64, 128)] + [(*config.warp_tile[1::-1], config.warp_tile[2])],
        "out": list(OUTPUTS),
        "operator": ["gemm", "gemm_aquant"],
        "group": [(1, 1, 128), (1, 1, 64), (1, 128, 128)],
    }
    assert set(other) == {field.name for field in dataclasses.fields(config)}, "a new field: say how it may change"
    found = []
    for field, values in other.items():
        for value in values:
            try:
                changed = dataclasses.replace(config, **{field: value})
            except ArgumentError:
                continue  # refused: it can't be confused with anything
            if changed != config:
                found.append(changed)
    return found
