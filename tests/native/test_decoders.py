"""Every code of every encoding, in every decoder, against ml_dtypes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from gemmill.arch import ARCHS
from native_build import HOST_CPUS, compile_program
from problems import DTYPES

# The decoder of each arch, and whether it knows the FNUZ encodings too.
DECODERS = {
    "generic": ("generic", True),
    "x86-64-v3": ("avx2", False),
    "x86-64-v4": ("avx512", False),
    "x86-64-v4-bf16": ("bf16", True),
}


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_all_codes(arch, toolchain, tmp_path):
    decoder, fnuz = DECODERS[arch]
    flags = ["-O2", *ARCHS[arch].flags, f'-DDECODER="cpu/decode_{decoder}.h"', *(["-DFNUZ"] if fnuz else [])]
    program = compile_program(Path(__file__).parent / "decoders.cpp", tmp_path / "decoders", toolchain, flags)
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in output.splitlines()]
    assert len(lines) == (8 if fnuz else 6)
    for name, *words in lines:
        got = np.array([int(word, 16) for word in words], np.uint32).view(np.float32)
        expected = np.arange(256, dtype=np.uint8).view(DTYPES[name]).astype(np.float32)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]), err_msg=name)
