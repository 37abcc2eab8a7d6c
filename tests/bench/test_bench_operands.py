"""The operands that bench/sm_90a.py makes: what is stored is what the reference multiplies. Needs PyTorch, no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from gemmill.operands import Int4Matrix, shuffled
from gemmill.variant import INT4, VARIANTS
from hopper.cases import Case
from hopper.operands import Operands, sets_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("layout", ["rcr", "rrr", "crr", "ccr"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_expected_is_the_product_of_what_is_stored(variant: str, layout: str) -> None:
    case = Case(variant, layout, 6, 5, 384)
    x = Operands(case, device="cpu", sets=2)
    aq = x.scales(0).float().numpy()
    a = x.matrix_a(0).numpy()
    if VARIANTS[variant].a == INT4:
        order = "F" if layout[0] == "c" else "C"
        assert np.array_equal(Int4Matrix(x.a[0].numpy(), (6, 384), order).values(), a)
    exact = np.einsum("mk,mk,kn->mn", a.astype(float), aq.repeat(128, 1), x.matrix_b(0).double().numpy())
    assert np.allclose(x.expected(scaled=True).numpy(), exact, rtol=1e-4, atol=1e-4 * abs(exact).max())
    assert not np.allclose(x.expected(scaled=False).numpy(), exact, rtol=1e-2)


@pytest.mark.parametrize("variant", ["fp8", "fp8i4"])
def test_shuffled_scales_are_the_runtimes(variant: str) -> None:
    x = Operands(Case(variant, "rcr", 6, 5, 384), device="cpu", sets=2)
    for tile_k in (128, 256):
        theirs = shuffled(x.scales(1).float().numpy(), tile_k // 128)
        assert np.array_equal(x.shuffled(tile_k)[1].float().numpy(), theirs)


def test_sets_start_where_an_allocation_could() -> None:
    x = Operands(Case("fp8", "rcr", 3, 5, 130), device="cpu", sets=3)
    assert all((t[2].data_ptr() - t[0].data_ptr()) % 512 == 0 for t in (x.a, x.b, x.aq, x.c))


def test_sets_exceed_the_cache() -> None:
    for case in (Case("fp8", "rcr", 16, 4096, 4096), Case("fp8", "rcr", 8192, 8192, 8192)):
        assert sets_of(case) * case.input_bytes > 2 * 50 * 2**20
