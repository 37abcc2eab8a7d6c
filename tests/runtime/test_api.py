"""gemm_aquant on fake kernels: variants, layouts read from strides, outputs, refusals, threads."""

from __future__ import annotations

import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor

import gemmill
import ml_dtypes
import numpy as np
import pytest
from gemmill import api, choice
from gemmill.cache import Cache
from gemmill.errors import ArgumentError, DeviceError, KernelNotFound, Refused
from gemmill.layout import LAYOUTS
from gemmill.operands import Int4Matrix, preshuffle_scale
from gemmill.plan import PlanCache
from gemmill.search import VARIABLE
from generators import IS_INT4, SHAPES, bad_forms, check, configs, forms, problem
from support import add_fake, fake_config

OUTPUTS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
DECODE = fake_config()


@pytest.mark.parametrize("config", list(configs()), ids=lambda c: f"{c.variant}-{c.layout}-{c.family}")
def test_every_variant_layout_and_family(found_cache, config):
    add_fake(found_cache.root, config)
    for shape in SHAPES:
        p = problem(config.variant, *shape, config.layout)
        check(gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=config.name), p)
        if config.family == "decode":
            c = gemmill.gemm_aquant(p.a, p.b, p.aq)
            assert c.dtype == np.float16
            check(c, p)
        else:
            with pytest.raises(KernelNotFound):
                gemmill.gemm_aquant(p.a, p.b, p.aq)
            check(gemmill.gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 256)), p)


def add_all_layouts(cache, variant="fp8"):
    for layout in LAYOUTS:
        add_fake(cache.root, fake_config(variant, layout))


@pytest.mark.parametrize("shape", [(3, 5, 130), (2, 2, 2), (4, 3, 300)])
def test_every_form_of_every_operand(found_cache, shape):
    """All accepted storage forms of A, B and AQ together give the same product."""
    add_all_layouts(found_cache)
    p = problem("fp8", *shape)
    for a in forms(p.a).values():
        for b in forms(p.b).values():
            for aq in forms(p.aq).values():
                check(gemmill.gemm_aquant(a, b, aq), p)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 130), (5, 1, 130), (3, 4, 1), (1, 1, 300), (1, 4, 1)])
def test_dimensions_of_one_have_any_layout(found_cache, shape):
    """With one kernel only, of whatever layout: an order that both fit must not be decided for the wrong one."""
    p = problem("fp8", *shape)
    for layout, place in LAYOUTS.items():
        api._plans.clear()
        choice.forget()
        for path in found_cache.root.glob("index/*/*"):
            path.unlink()
        add_fake(found_cache.root, fake_config("fp8", layout))
        m, n, k = shape
        fits_a = place.a_col == p.a.flags.f_contiguous or m == 1 or k == 1
        fits_b = place.b_col or n == 1 or k == 1
        if fits_a and fits_b:
            check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)
        else:
            with pytest.raises(KernelNotFound):
                gemmill.gemm_aquant(p.a, p.b, p.aq)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 5, 131), (1, 4, 7), (5, 2, 1)])
def test_int4_in_both_orders(found_cache, shape, order):
    add_all_layouts(found_cache, "fp8i4f32")
    p = problem("fp8i4f32", *shape)
    a = Int4Matrix.from_values(p.a.values(), order)
    for b in forms(p.b).values():
        check(gemmill.gemm_aquant(a, b, p.aq), p)


def test_scales_in_the_other_order_are_converted(found_cache):
    for layout in ("rcr", "ccr"):
        add_fake(found_cache.root, fake_config("fp8", layout))
    for layout in ("rcr", "ccr"):
        p = problem("fp8", 5, 4, 700, layout)
        for aq in forms(p.aq).values():
            check(gemmill.gemm_aquant(p.a, p.b, aq), p)
        check(gemmill.gemm_aquant(p.a, p.b, p.aq[::-1][::-1]), p)
        check(gemmill.gemm_aquant(p.a, p.b, np.repeat(p.aq, 2, axis=1)[:, ::2]), p)


@pytest.mark.parametrize("out", OUTPUTS)
def test_output_types(found_cache, out):
    add_fake(found_cache.root, fake_config(out=out))
    p = problem("fp8", 4, 6, 200, out=out)
    c = gemmill.gemm_aquant(p.a, p.b, p.aq, out_dtype=OUTPUTS[out])
    assert c.dtype == OUTPUTS[out]
    check(c, p)
    given = np.full((4, 6), np.nan, OUTPUTS[out])
    assert gemmill.gemm_aquant(p.a, p.b, p.aq, given) is given
    check(given, p)
    # A named kernel decides the type.
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=fake_config(out=out).name), p)
    if out != "f16":
        with pytest.raises(KernelNotFound, match="gemm_aquant_fp8_rcr_"):
            gemmill.gemm_aquant(p.a, p.b, p.aq)
        with pytest.raises(ArgumentError, match=f"writes {np.dtype(OUTPUTS[out]).name}, not float16"):
            gemmill.gemm_aquant(p.a, p.b, p.aq, out_dtype=np.float16, kernel=fake_config(out=out).name)


def test_out_with_a_leading_dimension(found_cache):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 6, 200)
    whole = np.full((4, 9), 7, np.float16)
    gemmill.gemm_aquant(p.a, p.b, p.aq, out=whole[:, 1:7])
    check(whole[:, 1:7], p)
    assert (whole[:, [0, 7, 8]] == 7).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: np.empty((3, 4), np.float16), r"out has shape \(3, 4\): needed \(M, N\) = \(4, 3\)"),
        (lambda: np.empty((4, 3)), "output dtype 'float64': accepted are float16, bfloat16, float32"),
        (lambda: np.empty((4, 3), ">f2"), r"output dtype 'float16 \(byte-swapped\)': accepted are"),
        (lambda: np.asfortranarray(np.empty((4, 3), np.float16)), "out is not row-major"),
        (lambda: np.empty((4, 6), np.float16)[:, ::2], "out is not row-major"),
        (lambda: np.empty((4, 3), np.float16)[::-1], "out is not row-major"),
        (lambda: np.broadcast_to(np.float16(0), (4, 3)), "out is not row-major"),
        (lambda: np.frombuffer(b"0" * 24, np.float16).reshape(4, 3), "out is read-only"),
        (lambda: Int4Matrix(bytes(6), (4, 3)), "out is a Int4Matrix: needed an array"),
        (lambda: [[0] * 3] * 4, "an operand is a builtins.list: needed a numpy.ndarray"),
    ],
)
def test_out_is_refused(found_cache, make, text):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    for _ in range(2):  # a kept plan must refuse it too
        with pytest.raises(ArgumentError, match=text):
            gemmill.gemm_aquant(p.a, p.b, p.aq, make())


def test_out_and_out_dtype_must_agree(found_cache):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    out = np.empty((4, 3), np.float16)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, out, out_dtype="float16"), p)
    with pytest.raises(ArgumentError, match="out is float16, out_dtype 'float32': leave one of them out"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, out, out_dtype="float32")


@pytest.mark.parametrize("operand", ["A", "B", "AQ"])
def test_overlap_is_refused(found_cache, operand):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    operands = {"A": p.a, "B": p.b, "AQ": p.aq}
    x = operands[operand]
    buffer = np.zeros(4 * 3 * 2 + x.nbytes, np.uint8)
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    moved = np.ndarray(x.shape, x.dtype, buffer, 4 * 3 * 2, order=order)
    moved[...] = x
    operands[operand] = moved
    before, after = (np.ndarray((4, 3), np.float16, buffer, at) for at in (0, 2))
    check(gemmill.gemm_aquant(*operands.values(), out=before), p)  # beside it is no overlap
    with pytest.raises(ArgumentError, match=f"out overlaps {operand} in memory"):
        gemmill.gemm_aquant(*operands.values(), out=after)


def test_rows_between_rows_are_no_overlap(found_cache):
    """Out may lie in the gaps of an input: the addresses interleave, the elements do not."""
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    buffer = np.zeros((4, 130 + 6), np.uint8)
    a = buffer[:, :130].view(p.a.dtype)
    a[...] = p.a
    out = buffer[:, 130:].view(np.float16)
    check(gemmill.gemm_aquant(a, p.b, p.aq, out), p)
    assert np.array_equal(a.view(np.uint8), p.a.view(np.uint8))


@pytest.mark.parametrize("shape", [(0, 5, 130), (5, 0, 130), (0, 0, 0), (0, 5, 0), (5, 0, 0), (3, 4, 0)])
def test_nothing_to_multiply_needs_no_kernel(shape):
    m, n, k = shape
    for variant in ("fp8", "bf8i4"):
        p = problem(variant, m, n, k)
        c = gemmill.gemm_aquant(p.a, p.b, p.aq)
        assert c.shape == (m, n)
        assert c.dtype == np.float16
        assert not c.any()
    out = np.full((m, n), np.nan, np.float32)
    assert gemmill.gemm_aquant(p.a, p.b, p.aq, out) is out
    assert not out.any()


def test_nothing_to_multiply_is_checked_all_the_same():
    p = problem("fp8", 3, 0, 130)
    with pytest.raises(ArgumentError, match="AQ has shape"):
        gemmill.gemm_aquant(p.a, p.b, p.aq[:, :1])
    with pytest.raises(ArgumentError, match="no variant takes"):
        gemmill.gemm_aquant(p.a, p.b, p.aq.astype(np.float64))


@pytest.mark.parametrize("name", list(bad_forms(np.ones((4, 130), np.uint8))))
def test_other_strides_are_refused(found_cache, name):
    add_all_layouts(found_cache)
    p = problem("fp8", 4, 4, 130)
    with pytest.raises(ArgumentError, match=r"A is neither row- nor column-major \(float8_e4m3fn \(4, 130\), strides"):
        gemmill.gemm_aquant(bad_forms(p.a)[name], p.b, p.aq)
    with pytest.raises(ArgumentError, match="B is neither row- nor column-major"):
        gemmill.gemm_aquant(p.a, bad_forms(np.ascontiguousarray(p.b))[name], p.aq)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: (p.a[0], p.b, p.aq), "A has 1 dimensions"),
        (lambda p: (p.a, p.b[None], p.aq), "B has 3 dimensions"),
        (lambda p: (p.a, p.b, p.aq[0]), "AQ has 1 dimensions"),
        (lambda p: (p.a[:, :129], p.b, p.aq), r"their K differ, 129 and 130"),
        (lambda p: (p.a, p.b, p.aq[:, :1]), r"AQ has shape \(4, 1\): .* so needed \(4, 2\)"),
        (lambda p: (p.a, p.b, p.aq.T), r"AQ has shape \(2, 4\)"),
        (lambda p: (p.a, p.b, p.aq.astype(np.float64)), r"no variant takes .* AQ float64"),
        (lambda p: (p.a, p.b, p.aq.astype(">f4")), r"no variant takes .* AQ float32 \(byte-swapped\)"),
        (lambda p: (p.a, p.b.astype(ml_dtypes.float8_e5m2), p.aq), "no variant takes A float8_e4m3fn, B float8_e5m2"),
        (lambda p: (p.a.astype(np.float32), p.b, p.aq), "no variant takes A float32"),
        (lambda p: (p.a.view(np.uint8), p.b, p.aq), "no variant takes A uint8"),
        (lambda p: (p.a.tolist(), p.b, p.aq), "an operand is a builtins.list"),
        (lambda p: (np.ma.masked_array(p.a), p.b, p.aq), "needed a numpy.ndarray without mask"),
        (lambda p: (p.a, Int4Matrix(b"", (130, 0)), p.aq), "only A may be an Int4Matrix"),
        (lambda p: (p.a, p.b, Int4Matrix(b"0000", (4, 2))), "AQ is an Int4Matrix"),
        (lambda p: (preshuffle_scale(p.aq, 256), p.b, p.aq), "only AQ a PreshuffledScale"),
        (lambda p: (p.a, p.b, preshuffle_scale(p.aq[:3], 256)), "does not fit A .*: needed M = 4, 2 groups"),
        (lambda p: (p.a, p.b, preshuffle_scale(p.aq[:, :1], 256)), "does not fit A"),
    ],
)
def test_operands_that_do_not_fit(found_cache, change, text):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(ArgumentError, match=text):
        gemmill.gemm_aquant(*change(p))


def test_the_refusal_of_types_lists_what_is_accepted():
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(ArgumentError) as caught:
        gemmill.gemm_aquant(p.a, p.b, p.aq.astype(np.float16))
    text = str(caught.value)
    assert "fp8i4f32  int4             float8_e4m3fn    float32          (ocp)" in text
    assert "bf8       float8_e5m2fnuz  float8_e5m2fnuz  float32          (fnuz)" in text


def test_the_other_encoding_is_refused_and_both_are_named(found_cache):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    a, b = (x.astype(ml_dtypes.float8_e4m3fnuz) for x in (p.a, p.b))
    for options in ({}, {"arch": "generic"}, {"kernel": DECODE.name}):
        with pytest.raises(ArgumentError, match=r"float8_e4m3fnuz is .* FNUZ .*gfx942.*OCP: needed float8_e4m3fn\."):
            gemmill.gemm_aquant(a, b, p.aq, **options)
    with pytest.raises(ArgumentError, match=r"OCP encoding .*; gfx942 uses FNUZ: needed float8_e4m3fnuz"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, arch="gfx942")


def test_a_gpu_arch_says_what_is_missing(found_cache):
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(KernelNotFound, match="no gfx950 device here: the driver shows"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, arch="gfx950")
    with pytest.raises(ArgumentError, match="unknown arch 'sm_90'"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, arch="sm_90")


def test_no_kernel_says_what_was_searched_refused_and_how_to_build(found_cache, tmp_path):
    key = add_fake(found_cache.root, outcome=None)
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(KernelNotFound) as caught:
        gemmill.gemm_aquant(p.a, p.b, p.aq, arch="generic")
    text = str(caught.value)
    assert f"  {found_cache.root} (GEMMILL_CACHE)" in text
    assert f"  {tmp_path / 'xdg' / 'gemmill'} (XDG_CACHE_HOME), absent" in text
    assert f"generic/{DECODE.name} ({key[:12]} in {found_cache.root}): its selftest outcome is untested" in text
    assert "./mill 'selftest:generic/gemm_aquant_fp8_rcr_*'" in text
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, allow_untested=True), p)
    with pytest.raises(KernelNotFound):  # the plan of the call that allowed it is not used
        gemmill.gemm_aquant(p.a, p.b, p.aq)


def test_a_kernel_may_be_named(found_cache):
    key = add_fake(found_cache.root)
    kernel = gemmill.load(DECODE.name)
    p = problem("fp8", 4, 3, 130)
    for wanted in (DECODE.name, f"generic/{DECODE.name}", key, key[:12], kernel):
        check(gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=wanted), p)
    check(kernel(p.a, p.b, p.aq), p)
    out = np.empty((4, 3), np.float16)
    assert kernel(p.a, p.b, p.aq, out) is out
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=kernel, arch="generic"), p)
    for nonsense in (7, [DECODE.name], DECODE):
        with pytest.raises(ArgumentError, match=r"kernel is a .*: needed a gemmill.Kernel, a name or a key"):
            gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=nonsense)
    with pytest.raises(ArgumentError, match="arch 'x86-64-v3' with a kernel of arch 'generic'"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=kernel, arch="x86-64-v3")


def test_a_named_kernel_must_suit_the_operands(found_cache):
    for config in (fake_config("bf8"), fake_config("fp8", "rrr"), fake_config(family="preshufflequant")):
        add_fake(found_cache.root, config)
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(ArgumentError, match="is of variant bf8; the operands are fp8"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=fake_config("bf8").name)
    with pytest.raises(ArgumentError, match="has layout rrr; the operands' strides mean rcr"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=fake_config("fp8", "rrr").name)
    kernel = fake_config(family="preshufflequant").name
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=kernel), p)
    check(gemmill.gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 256), kernel=kernel), p)
    with pytest.raises(ArgumentError, match=r"shuffled for tile_k 128, .* has tile_k 256"):
        gemmill.gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 128), kernel=kernel)
    add_fake(found_cache.root)
    with pytest.raises(ArgumentError, match=r"shuffled for tile_k 256, .* takes it unshuffled"):
        gemmill.gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 256), kernel=DECODE.name)
    add_fake(found_cache.root, fake_config("bf8"), outcome="failed")
    choice.forget()
    with pytest.raises(Refused):
        gemmill.gemm_aquant(p.a, p.b, p.aq, kernel=fake_config("bf8").name)


def test_the_path_is_read_again_when_it_changes(found_cache, tmp_path, monkeypatch):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "empty"))
    with pytest.raises(KernelNotFound):
        gemmill.gemm_aquant(p.a, p.b, p.aq)


@pytest.mark.parametrize("named", [False, True])
def test_a_new_shape_costs_no_search(found_cache, monkeypatch, named):
    add_fake(found_cache.root)
    options = {"kernel": DECODE.name} if named else {}
    p = problem("fp8", 4, 3, 130)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, **options), p)
    monkeypatch.setattr(Cache, "read", lambda self, key: pytest.fail("the cache was read"))
    p = problem("fp8", 5, 3, 130)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, **options), p)


def test_a_miss_is_not_remembered(found_cache):
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(KernelNotFound):
        gemmill.gemm_aquant(p.a, p.b, p.aq)
    add_fake(found_cache.root)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)


def test_plans_are_bounded(found_cache, monkeypatch):
    monkeypatch.setattr(PlanCache, "most", 4)
    add_fake(found_cache.root)
    for n in range(1, 12):
        p = problem("fp8", 2, n, 3)
        check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)
        assert len(api._plans) <= 4


def test_a_failing_kernel_raises_with_its_text(found_cache):
    add_fake(found_cache.root, DECODE, "FAULT_RUN_FAILS")
    p = problem("fp8", 4, 3, 130)
    with pytest.raises(DeviceError, match="device = 4"):
        gemmill.gemm_aquant(p.a, p.b, p.aq)


def test_a_workspace_is_given_where_wanted(found_cache):
    add_fake(found_cache.root, DECODE, "WANTS_WORKSPACE")
    p = problem("fp8", 4, 3, 130)
    for _ in range(2):
        check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_come_through(found_cache, special):
    add_fake(found_cache.root, fake_config("bf8"))
    p = problem("bf8", 3, 3, 130)
    a, b, aq = p.a.copy(), p.b.copy(order="F"), p.aq.copy()
    a[0, 3], b[5, 1], aq[2, 0] = special, special, special
    expected = gemmill.reference_gemm_aquant(a, b, aq)
    c = gemmill.gemm_aquant(a, b, aq).astype(np.float64)
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    assert np.array_equal(c[np.isinf(expected)], expected[np.isinf(expected)])


def test_inputs_may_be_read_only_and_stay_untouched(found_cache):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    before = [x.tobytes() for x in (p.a, p.b, p.aq)]
    for x in (p.a, p.b, p.aq):
        x.setflags(write=False)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)
    assert [x.tobytes() for x in (p.a, p.b, p.aq)] == before


def test_memory_maps_are_arrays_too(found_cache, tmp_path):
    add_fake(found_cache.root)
    p = problem("fp8", 4, 3, 130)
    p.a.tofile(tmp_path / "a")
    a = np.memmap(tmp_path / "a", np.uint8, "r").reshape(4, 130).view(p.a.dtype)
    check(gemmill.gemm_aquant(a, p.b, p.aq), p)


def test_many_threads_at_once(found_cache):
    """Plans are made and kernels loaded concurrently; every result is right."""
    for variant in IS_INT4:
        add_fake(found_cache.root, fake_config(variant))
    problems = [problem(v, 3, 4 + i, 130 + i, seed=i) for i, v in enumerate(list(IS_INT4) * 3)]
    barrier = threading.Barrier(8)

    def work(start):
        barrier.wait()
        for i in range(len(problems)):
            p = problems[(start + i) % len(problems)]
            check(gemmill.gemm_aquant(p.a, p.b, p.aq), p)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, i) for i in range(8)]:
            done.result()


def test_call_overhead(found_cache):
    """CPU time, and generous: bench/ has the figure."""
    add_fake(found_cache.root)
    kernel = gemmill.load(DECODE.name)
    p = problem("fp8", 1, 1, 1)
    out = np.empty((1, 1), np.float16)
    run = kernel.library.run
    arguments = (*[x.ctypes.data for x in (p.a, p.aq, p.b, out)], *[1] * 7, None, 0, None)

    def best(call):
        return min(timeit.repeat(call, number=500, repeat=15, timer=time.thread_time)) / 500

    overhead = best(lambda: gemmill.gemm_aquant(p.a, p.b, p.aq, out)) - best(lambda: run(*arguments))
    assert overhead < 25e-6
