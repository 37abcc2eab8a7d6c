"""Keys: every input changes them, and nothing else does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from factory import config
from gemmill.cache import is_key
from gemmill.explain import differences
from hypothesis import given
from strategies import configs, neighbours

from kernels.config import KernelConfig
from kernels.describe import describe_config
from kernels.headers import Scan
from kernels.key import key_inputs, key_of
from kernels.toolchain import Toolchain

GCC = Toolchain("gcc", ("g++",), {"kind": "gcc", "version": "gcc version 12.2.0", "options": ["-fPIC"]})


def inputs(of: KernelConfig, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "abi": 1,
        "source": Scan("0" * 64, ("a.h",)),
        "headers": {"a.h": "1" * 64},
        "flags": {"compile": ["-O3"], "link": ["-s"]},
        "toolchain": GCC,
    }
    return key_inputs(of, **(given | changes))


@given(configs())
def test_every_field_changes_the_key(of: KernelConfig) -> None:
    key = key_of(inputs(of))
    assert is_key(key)
    assert all(key_of(inputs(other)) != key for other in neighbours(of))


@given(configs())
def test_key_is_a_function_of_the_config(of: KernelConfig) -> None:
    assert key_of(inputs(of)) == key_of(inputs(copy.deepcopy(of)))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"abi": 2}, "abi"),
        ({"source": Scan("2" * 64, ())}, "source"),
        ({"headers": {"a.h": "3" * 64}}, "headers.a.h"),
        ({"headers": {"a.h": "1" * 64, "b.h": "1" * 64}}, "headers.b.h"),
        ({"flags": {"compile": ["-O2"], "link": ["-s"]}}, "flags.compile"),
        ({"toolchain": Toolchain("gcc", ("g++",), {**GCC.identity, "version": "13"})}, "toolchain.version"),
    ],
)
def test_every_other_input_changes_the_key(changes: dict[str, Any], place: str) -> None:
    before, after = inputs(config()), inputs(config(), **changes)
    assert key_of(before) != key_of(after)
    assert [where for where, *_ in differences(before, after)] == [place]


def test_how_a_compiler_is_called_and_the_order_of_headers_do_not_matter() -> None:
    headers = {"a.h": "1" * 64, "b.h": "2" * 64}
    moved = Toolchain("gcc", ("/opt/gcc/bin/g++",), GCC.identity)
    one = inputs(config(), headers=headers)
    other = inputs(config(), headers=dict(reversed(headers.items())), toolchain=moved)
    assert key_of(one) == key_of(other)


def test_describe_config() -> None:
    said = describe_config(config("bf8i4", "ccr", arch="gfx942", warp_tile=(4, 8, 32)))
    assert (said["encoding"], said["pipeline"], said["preshuffle"]) == ("fnuz", "mem", False)
    assert (said["tile"], said["group"]) == ([8, 8, 128], [1, 1, 128])
    assert said["operands"] == {
        "A": {"dtype": "int4", "order": "column"},
        "AQ": {"dtype": "float8_e5m2fnuz", "order": "column"},
        "B": {"dtype": "float8_e5m2fnuz", "order": "column"},
        "C": {"dtype": "float16", "order": "row"},
    }
