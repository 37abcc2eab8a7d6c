"""Calls a ck_tile kernel library over a driver that computes nothing, and prints what it was asked to launch.

    ck_child.py KERNEL.so FAKE.so [[M, N, K], ...]

prints for each problem {"code", "text", "launches": [[function, [x, y, z], threads, arguments in hex], ...]}.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


class Launch(ctypes.Structure):
    """As tests/native/fake_hip.cpp has it."""

    _fields_ = (
        ("function", ctypes.c_char * 256),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("arguments", ctypes.c_ubyte * 256),
    )


def call(library: ctypes.CDLL, driver: ctypes.CDLL, m: int, n: int, k: int) -> dict[str, Any]:
    """Call the device-pointer entry with packed rcr operands at made-up addresses."""
    before = driver.fake_launch_count()
    size = ctypes.c_int64
    per_tile = 2 if b"preshufflequant" in library.dispatcher_get_kernel_name() else 0
    ldaq = m * per_tile or -(-k // 128)
    addresses = [ctypes.c_void_p(0x1000 * (i + 1)) for i in range(5)]
    *operands, workspace = addresses
    numbers = [size(x) for x in (m, n, k, k, ldaq, k, n)]
    code = library.gemmill_gemm_aquant(*operands, *numbers, workspace, size(1 << 40), None)
    launches = [driver.fake_launch(i).contents for i in range(before, driver.fake_launch_count())]
    return {
        "code": code,
        "text": library.gemmill_last_error().decode() if code else "",
        "launches": [
            [one.function.decode(), list(one.grid), one.threads, bytes(one.arguments).hex()] for one in launches
        ],
    }


def main(kernel: str, fake: str, shapes: str) -> None:
    driver = ctypes.CDLL(fake, mode=ctypes.RTLD_GLOBAL)
    driver.fake_launch.restype = ctypes.POINTER(Launch)
    library = ctypes.CDLL(kernel)
    library.dispatcher_get_kernel_name.restype = ctypes.c_char_p
    library.gemmill_last_error.restype = ctypes.c_char_p
    library.gemmill_workspace_bytes.restype = ctypes.c_int64
    said = [call(library, driver, *shape) for shape in json.loads(shapes)]
    print(json.dumps({"name": library.dispatcher_get_kernel_name().decode(), "calls": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
