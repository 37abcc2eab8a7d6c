"""Bad arguments: the code, and a text that names the argument, its value and what was expected."""

from __future__ import annotations

import json

import pytest
from gemmill.library import call_pointers, call_rest
from native_build import HOST_CPUS, one
from problems import random_problem

PACKED = (
    "A",
    "AQ",
    "B",
    "C",
    "M",
    "N",
    "K",
    "stride_A",
    "stride_AQ",
    "stride_B",
    "stride_C",
    "QK_A",
    "k_batch",
    "time_ms",
)
STRIDED = ("A", "AQ", "B", "C", "M", "N", "K", "lda", "ldaq", "ldb", "ldc", "workspace", "workspace_bytes", "stream")
HUGE = 2**62


@pytest.fixture(scope="module", params=["decode", "preshufflequant"])
def library(request, libraries):
    return libraries([one(HOST_CPUS[0], "fp8", "rcr", request.param)])[0]


@pytest.fixture
def packed(library):
    p = random_problem(library.config, (5, 7, 300))
    c = library.poisoned(5, 7)
    values = (p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data, 5, 7, 300, 300, 3, 300, 7, 3, 1, None)
    return {**dict(zip(PACKED, values, strict=True)), "keep": (p, c)}


@pytest.fixture
def strided(library):
    p = random_problem(library.config, (5, 7, 300), 0, library.config.family_row.preshuffle)
    c = library.poisoned(5, 7)
    values = (p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data, 5, 7, 300, 300, p.aq.stride, 300, 7, None, 0, None)
    return {**dict(zip(STRIDED, values, strict=True)), "keep": (p, c)}


def packed_call(values):
    """Return the values of STRIDED as gemmill_launch's argument."""
    numbers = [value or 0 for value in values]
    return call_pointers(*numbers[:4]) + call_rest(tuple(numbers[4:11]), *numbers[11:])


def call(function, names, values, **changes):
    return function(*({**values, **changes}[name] for name in names))


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"M": -1}, -1, "M = -1: expected at least 0"),
        ({"N": -7}, -1, "N = -7: expected at least 0"),
        ({"K": -(2**63)}, -1, "K = -9223372036854775808: expected at least 0"),
        ({"M": HUGE, "K": 8}, -1, "A (M x K): "),
        ({"K": HUGE, "M": 0}, -1, "B (K x N): "),
        ({"M": HUGE, "K": 0}, -1, "C (M x N): "),
        ({"stride_A": 301}, -1, "stride_A = 301: expected 300"),
        ({"stride_AQ": 4}, -1, "stride_AQ = 4: expected 3"),
        ({"stride_B": 0}, -1, "stride_B = 0: expected 300"),
        ({"stride_C": 8}, -1, "stride_C = 8: expected 7"),
        ({"QK_A": 2}, -1, "QK_A = 2: expected 3, which is ceil(K / 128)"),
        ({"k_batch": 2}, -2, "k_batch = 2: expected 1"),
        ({"k_batch": 0}, -2, "k_batch = 0: expected 1"),
        *(({name: None}, -1, f"{name} = NULL: expected the address") for name in ("A", "AQ", "B", "C")),
    ],
)
def test_packed(library, packed, changes, code, text):
    assert call(library.c.dispatcher_run_aquant_gemm, PACKED, packed, **changes) == code
    assert library.error.startswith(text)


@pytest.mark.parametrize("changes", [{"M": 0, "stride_C": 7}, {"N": 0, "stride_C": 0}])
def test_an_empty_c_needs_no_pointers(library, packed, changes):
    nothing = dict.fromkeys(("A", "AQ", "B", "C"))
    assert call(library.c.dispatcher_run_aquant_gemm, PACKED, packed, **nothing, **changes) == 0


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"M": -1}, -1, "M = -1: expected at least 0"),
        ({"lda": 299}, -1, "lda = 299: expected at least 300"),
        ({"ldaq": 2}, -1, "ldaq = 2: expected at least "),
        ({"ldb": -1}, -1, "ldb = -1: expected at least 300"),
        ({"ldc": 6}, -1, "ldc = 6: expected at least 7"),
        ({"lda": HUGE}, -1, "A: 5 lines with a stride of 4611686018427387904 elements"),
        ({"ldc": HUGE}, -1, "C: 5 lines"),
        ({"stream": 1}, -2, "stream: expected NULL"),
        *(({name: None}, -1, f"{name} = NULL: expected the address") for name in ("A", "AQ", "B", "C")),
    ],
)
def test_strided(library, strided, changes, code, text):
    values = [{**strided, **changes}[name] for name in STRIDED]
    for came in (library.c.gemmill_gemm_aquant(*values), library.c.gemmill_launch(packed_call(values))):
        assert came == code
        assert library.error.startswith(text)


def test_good_calls_after_bad_ones(library, packed, strided):
    assert call(library.c.dispatcher_run_aquant_gemm, PACKED, packed, M=-1) == -1
    assert call(library.c.dispatcher_run_aquant_gemm, PACKED, packed) == 0
    assert call(library.c.gemmill_gemm_aquant, STRIDED, strided) == 0
    _, c = strided["keep"]
    before = c.copy()
    c.fill(0)
    assert library.c.gemmill_launch(packed_call([strided[name] for name in STRIDED])) == 0
    assert c[1:-1].any() and (c[:5] == before[:5]).all()
    assert library.c.gemmill_launch(None) == -1 and library.error == "call is NULL: expected the arguments"


def test_empty_problems_need_no_pointers(library):
    nothing = dict.fromkeys(STRIDED, None) | {"N": 7, "K": 0, "M": 0, "lda": 0, "ldaq": 0, "ldb": 0, "ldc": 7}
    nothing["workspace_bytes"] = 0
    assert call(library.c.gemmill_gemm_aquant, STRIDED, nothing) == 0


def test_workspace(library):
    assert library.c.gemmill_workspace_bytes(100, 100, 100) == 0
    assert library.c.gemmill_workspace_bytes(-1, 100, 100) == -1
    assert library.error == "M = -1: expected at least 0"


def test_identity(library):
    c = library.c
    assert c.dispatcher_get_kernel_name().decode() == library.config.name
    assert c.dispatcher_get_kernel_count() == 1
    assert c.gemmill_abi_version() == 2
    assert json.loads(c.gemmill_manifest())["name"] == library.config.name
    assert c.dispatcher_initialize() == 0
    c.dispatcher_cleanup()
    c.dispatcher_cleanup()
    assert c.dispatcher_initialize() == 0
