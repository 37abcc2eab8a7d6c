"""The index arithmetic of gemmill_convert, on the host: PTX is replaced, everything else is the device's source."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from native_build import compile_program

from kernels.paths import CHECKOUT
from kernels.toolchain import Toolchain

_ASM = re.compile(r'asm(?: volatile)?\(\s*"([a-z]+)(?:"[^"]*"|\\"|[^"])*?"(?:[^;"]|"[^"]*")*\);')
_ON_HOST = {
    "prmt": "d = permute_bytes(low, high, selector);",
    "ld": "load_words(w, i, p);",
    "st": "store_words(p, v);",
}

# Elements of A, its order and B's: what is copied, and whether it is transposed or unpacked.
KINDS = {
    "rrr": ("e4m3", False, False),
    "crr": ("e4m3", True, False),
    "int4-rcr": ("i4", False, True),
    "int4-ccr": ("i4", True, True),
    "int4-crr": ("i4", True, False),
}
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 515)


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert")
    native = CHECKOUT.native / "cuda"
    replaced = []

    def on_host(statement: re.Match[str]) -> str:
        replaced.append(statement[1])
        return _ON_HOST[statement[1]]

    for name in ("convert.cuh", "fill.cuh", "int4.cuh"):
        (folder / name).write_text(_ASM.sub(on_host, (native / name).read_text()))
    assert sorted(replaced) == ["ld", "ld", "prmt", "st"]
    (folder / "traits.h").write_text((native / "traits.h").read_text())
    (folder / "ptx.cuh").write_text(Path(__file__).with_name("ptx_on_host.h").read_text())
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_the_copies(headers: Path, kind: str, toolchain: Toolchain) -> None:
    if toolchain.kind == "zig":
        pytest.skip("zig carries no sanitizer libraries")
    elem, a_col, b_col = KINDS[kind]
    flags = [
        *("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-unknown-pragmas"),
        *(f"-DELEM_A={elem}", f"-DA_COL={int(a_col)}", f"-DB_COL={int(b_col)}", "-I", str(headers)),
    ]
    program = compile_program(Path(__file__).with_name("convert_on_host.cpp"), headers / kind, toolchain, flags)
    for i, m in enumerate(SIZES):
        n, k, gap = SIZES[-1 - i], SIZES[(5 * i + 3) % len(SIZES)], 16 * (i % 3)
        done = subprocess.run([program, *map(str, (m, n, k, gap))], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.startswith("0 of "), (
            m,
            n,
            k,
            gap,
            done.stdout,
            done.stderr[-2000:],
        )
