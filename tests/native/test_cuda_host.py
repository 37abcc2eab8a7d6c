"""The host side of CUDA kernels, their selftest, and the device tests, on a fake libcuda whose every call can fail."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import compile_driver, compile_host
from gemmill.errors import UnsupportedError
from native_build import generate

from kernels.backends import cuda
from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT


def kernel(variant: str, layout: str, family: str = "decode", tile_m: int = 16) -> KernelConfig:
    configs = load_catalogue().configs("sm_90a", variant=variant, layout=layout, family=family)
    return next(config for config in configs if config.tile[0] == tile_m)


PLAIN = kernel("fp8", "rcr")
INT4 = kernel("fp8i4", "crr")
CCR = kernel("bf8", "ccr", "prefill", 128)
SHUFFLED = kernel("bf8i4f32", "rcr", "preshufflequant", 128)
KERNELS = (PLAIN, INT4, CCR, SHUFFLED)
CONVERTING = kernel("fp8i4", "crr", "prefill", 128)  # A is transposed and unpacked, B transposed
COPIES_OF_A = kernel("bf8i4", "rcr", "prefill", 128)
FEW_ROWS = kernel("fp8i4", "rcr", "decode", 64)  # A is unpacked from fewer rows on; k may be split
COPIES_OF_B = kernel("bf8", "rrr", "prefill", 128)


def label(config: KernelConfig) -> str:
    return f"{config.variant}-{config.layout}-{config.family}"


@pytest.fixture(scope="module")
def toolchain() -> cuda.CudaToolchain:
    try:
        return cuda.find_toolchain()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def ask(toolchain: cuda.CudaToolchain, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a scenario of cuda_child.py."""
    folder = tmp_path_factory.mktemp("cuda")
    driver = compile_driver(folder, toolchain)

    @functools.cache
    def built(config: KernelConfig) -> tuple[Path, Path]:
        source = generate(config, folder)
        return compile_host(config, source, folder, toolchain), source

    def run(scenario: str, config: KernelConfig, *arguments: str) -> Any:
        library, source = built(config)
        here = Path(__file__).parent
        argv = [sys.executable, here / "cuda_child.py", scenario, driver, config.id, library, source, *arguments]
        folders = (here, here.parent, here.parent / "gpu", CHECKOUT.root, os.environ.get("PYTHONPATH", ""))
        path = os.pathsep.join(map(str, folders))
        done = subprocess.run(
            list(map(str, argv)), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ---- The host side ----


@pytest.mark.parametrize("config", KERNELS, ids=label)
def test_a_call_is_right_and_leaves_nothing(ask: Any, config: KernelConfig) -> None:
    said = ask("good", config)
    assert (said["code"], said["right"]) == (0, True), said["text"]
    assert said["live"] == 2, "the module and the context that it retained, nothing else"
    assert said["after"] == said["contexts"] == 0
    assert said["calls"]["cuMemAlloc"] == said["calls"]["cuMemFree"] == 4
    assert said["calls"]["cuEventCreate"] == said["calls"]["cuEventDestroy"] == 2


@pytest.mark.parametrize("config", [PLAIN, SHUFFLED, CONVERTING], ids=label)
def test_every_failing_call_has_its_code_and_leaks_nothing(ask: Any, config: KernelConfig) -> None:
    said = ask("failures", config)
    assert said["first"] == [-3, "cuInit failed: CUDA_ERROR_FAKE (719), a fake error"]
    found = said["found"]
    assert len({one["name"] for one in found}) == 25, "all but cuInit and what only device pointers need"
    for one in found:
        told = f"{one['name']} call {one['turn']}"
        if one["name"] in (
            "cuMemFree",
            "cuEventDestroy",
            "cuCtxPopCurrent",
            "cuDevicePrimaryCtxRelease",
            "cuLibraryUnload",
        ):
            # Nothing can be done about these, and the result is there.
            assert one["code"] == 0, told
        else:
            assert one["code"] == -3 and one["text"].startswith(one["name"]), f"{told}: {one['code']} {one['text']}"
            assert "CUDA_ERROR_FAKE (719), a fake error" in one["text"], told
        # What the driver itself refuses to take back stays with it.
        kept = one["name"] in ("cuMemFree", "cuEventDestroy", "cuDevicePrimaryCtxRelease", "cuLibraryUnload")
        assert one["lost"] == (1 if kept else 0), told
        assert (one["contexts"], one["again"], one["right"]) == (0, 0, True), told


def test_out_of_memory_says_how_much_and_gives_back_the_rest(ask: Any) -> None:
    sizes = (17 * 384, 17 * 3 * 4, 384 * 80, 17 * 80 * 2)
    for (code, text, lost, right), size in zip(ask("out_of_memory", PLAIN), sizes, strict=True):
        assert code == -3
        assert text == f"out of device memory: {size} bytes were asked for"
        assert (lost, right) == (0, True)


@pytest.mark.parametrize("config", KERNELS, ids=label)
def test_a_warm_call_on_device_pointers_allocates_nothing(ask: Any, config: KernelConfig) -> None:
    said = ask("strided", config)
    asked = {
        "run": {"cuCtxGetCurrent": 1, "cuCtxGetDevice": 1, "cuPointerGetAttributes": 4, "cuLaunchKernelEx": 1},
        "launch": {"cuCtxGetDevice": 1, "cuLaunchKernelEx": 1},
    }
    for entry, calls in asked.items():
        one = said[entry]
        assert (one["codes"], one["warm"]) == ([0, 0], calls), entry
        # A thread encodes tensor maps that it has not met.
        assert one["first"] == {**calls, "cuTensorMapEncodeTiled": 3}, entry
        assert len(one["failed"]) == sum(one["first"].values())
        for name, code, text in one["failed"]:
            assert code == -3 and name in text, entry
    assert said["lost"] == 0


def test_kept_tensor_maps_are_those_of_the_problem(ask: Any) -> None:
    said = ask("maps", PLAIN)
    assert len(set(map(tuple, said["new"]))) == len(said["new"]), "each problem has maps of its own"
    assert said["kept"] == [said["new"]] * 2


def test_a_launch_is_in_a_context_of_its_device(ask: Any) -> None:
    there, none, other, back, failed, *beyond = ask("current", PLAIN)
    for said, device in ((there, 0), (none, 0), (other, 1), (back, 0)):
        assert said == [0, "", 1, device, 0], "launched once, and the caller's contexts are what they were"
    assert failed[:3] == [-3, "cuCtxGetDevice failed: CUDA_ERROR_FAKE (719), a fake error", 0]
    for said, device in zip(beyond, (-1, 64, 2**32), strict=True):
        assert said[:3] == [-2, f"device {device}: expected 0 to 63, more are not counted", 0] and said[4] == 0


def test_machines_without_the_device(ask: Any) -> None:
    said = ask("devices", PLAIN)
    texts = [text for _, text in said["said"]]
    assert [code for code, _ in said["said"]] == [-2] * 4
    assert texts[0].startswith("no CUDA device")
    for text, capability in zip(texts[1:], ("8.9", "10.0", "9.1"), strict=True):
        assert f"has compute capability {capability}: this kernel is code for sm_90a" in text
    assert texts[3].startswith("device 1 (Fake 1)")
    assert (said["after"], said["contexts"]) == (0, 0), "usable once there is a device"


def test_threads_share_one_module(ask: Any) -> None:
    said = ask("threads", PLAIN)
    assert said["codes"] == [0] * 8
    assert (said["loads"], said["live"]) == (1, 2)


def test_launches(ask: Any) -> None:
    said = ask("launches", PLAIN)
    assert said["16x1024x4096 packed"][0] == "gemmill_fast"
    assert said["16x1024x4096 odd"][0] == "gemmill_scalar", "lines that are no multiple of 16 bytes"
    entry, blocks, cluster = said["16x64x4096 packed"]
    assert entry == "gemmill_fast" and blocks > 1 and cluster, "one tile, its k split over blocks"
    assert said["5x70x0 packed"] == ["gemmill_scalar", 2, False], "nothing to load, zeros to write"


# ---- Operands copied to K-major ahead ----


@pytest.mark.parametrize(
    ("config", "with_both", "with_tails"),
    [(CONVERTING, 9 + 9, 6 + 6), (COPIES_OF_A, 27, 18), (COPIES_OF_B, 9, 6)],
    ids=lambda x: label(x) if isinstance(x, KernelConfig) else "",
)
def test_a_workspace_takes_copies(ask: Any, config: KernelConfig, with_both: int, with_tails: int) -> None:
    said = ask("converted", config)
    # Blocks of 256 rows, or 64 that are K-major, and 128 k; 5 x 5 tiles of the product.
    assert said["with"] == [["gemmill_convert", with_both], ["gemmill_plain", 25]]
    assert said["tails"] == [["gemmill_convert", with_tails], ["gemmill_plain", 25]]
    assert said["without"] == [["gemmill_fast", 25]]
    assert [entry for entry, _ in said["odd"]] == ["gemmill_scalar"], "what the copy engine can't take is not copied"
    assert [entry for entry, _ in said["small"]] == ["gemmill_fast"], "where copies don't pay"
    assert [entry for entry, _ in said["no k"]] == ["gemmill_scalar"]
    assert said["warm"] == {
        "cuCtxGetCurrent": 1, "cuCtxGetDevice": 1, "cuPointerGetAttributes": 5, "cuLaunchKernelEx": 2,
    }  # fmt: skip
    for (text, launched), entries in zip(said["failed"], ([], ["gemmill_convert"]), strict=True):
        assert text.startswith("returned -3") and "cuLaunchKernelEx failed" in text and launched == entries
    assert said["lost"] == 0


def test_the_entry_for_host_pointers_has_its_own_workspace(ask: Any) -> None:
    given, without = ask("converted_from_host", CONVERTING)
    assert given == [0, "", True, ["gemmill_convert", "gemmill_plain"], 2]
    assert without == [0, "", True, ["gemmill_fast"], 2], "no memory for it"


def test_compute_sanitizer_sees_both_entries_and_a_split_k(ask: Any) -> None:
    # Four tiles; one tile, and two blocks for it, twice; two tiles an element a load.
    fast, scalar = "gemmill_fast", "gemmill_scalar"
    assert ask("sanitized", PLAIN) == [[fast, 4, False], [fast, 2, True], [fast, 2, True], [scalar, 4, False]]
    # And copies, of as few rows as there are any: 2 x 9 tiles whose k is split; 5 x 5.
    assert ask("sanitized", FEW_ROWS)[4:] == [["gemmill_plain", 36, True]]
    assert ask("sanitized", CONVERTING)[4:] == [["gemmill_plain", 25, False]]


# ---- The device tests, without a device ----


@pytest.mark.parametrize("config", [INT4, CCR, SHUFFLED, CONVERTING, FEW_ROWS], ids=label)
def test_a_right_kernel_passes_the_device_tests(ask: Any, config: KernelConfig) -> None:
    said = ask("device_tests", config)
    skipped = [name for name, text in said.items() if text == "skipped"]
    assert {name: text for name, text in said.items() if text} == {"wrong-device": "skipped"}
    assert skipped == ["wrong-device"] and len(said) == {SHUFFLED: 21, CONVERTING: 24, FEW_ROWS: 25}.get(config, 20)


# What a kernel does wrong, and which checks must say so.
FAULTS = {
    "reads beyond K": ["shapes"],
    "no last row": ["shapes", "inputs", "repeats"],
    "writes between rows": ["shapes", "repeats", "far-lines"],
    "writes beyond C": ["shapes", "large-a", "large-b", "large-c", "bad-arguments", "another-context"],
    "changes A": ["inputs"],
    "first scale": ["shapes", "host-entry", "two-streams"],
    "changing bits": ["repeats"],
    "stale inputs": ["graph"],
    "float32 sums": ["sums"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_fails_them(ask: Any, fault: str) -> None:
    said = ask("device_tests", PLAIN, fault, ",".join(FAULTS[fault]))
    assert set(said) == set(FAULTS[fault]) and all(said.values()), said


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("an uncopied row", "64x512x2048 packed: C[63,0] is "),
        ("writes beyond the workspace", "wrote outside the workspace"),
    ],
)
def test_wrong_copies_fail_them(ask: Any, fault: str, text: str) -> None:
    said = ask("device_tests", COPIES_OF_A, fault, "conversion")
    assert said["conversion"].startswith(text)


def test_copies_that_come_too_early_fail_them(ask: Any) -> None:
    said = ask("device_tests", FEW_ROWS, "early copies", "conversion,conversion-in-turn")
    assert said == {"conversion": "", "conversion-in-turn": said["conversion-in-turn"]}
    assert re.match(r"515x517x253 aligned, in turn with others, seed 0: C\[\d+,\d+\] is ", said["conversion-in-turn"])


# ---- The selftest, without a device ----


@pytest.mark.parametrize("config", [*KERNELS, CONVERTING, FEW_ROWS], ids=label)
def test_a_right_kernel_passes_its_selftest(ask: Any, config: KernelConfig) -> None:
    said = ask("selftest", config)
    bare = ["bare"] if config in (CONVERTING, FEW_ROWS) else []
    assert said == {"said": "", "entries": ["host", "device", "gaps", "aligned", *bare], "contexts": 0}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("an uncopied row", r"exact 515x517x253, aligned entry: C\[514,0\] is nan, expected"),
        ("writes beyond the workspace", r"exact 515x517x253, aligned entry: wrote outside workspace"),
        ("wrong without", r"exact 515x517x253, bare entry: C\[\d+,\d+\] is .*, expected"),
    ],
)
def test_wrong_copies_fail_the_selftest(ask: Any, fault: str, text: str) -> None:
    assert re.match(text, ask("selftest", COPIES_OF_A, fault)["said"])


def test_half_a_sum_of_copies_fails_the_selftest(ask: Any) -> None:
    said = ask("selftest", FEW_ROWS, "half of a long k")["said"]
    assert re.match(r"exact 67x517x2045, aligned entry: C\[\d+,\d+\] is .*, expected", said)


# What only the entry for device pointers, or only lines with gaps, show; and what is said of it.
UNSEEN_BY_THE_HOST_ENTRY = {
    "writes beyond C": r"exact 1x1x1, device entry: wrote outside C",
    "writes before C": r"exact 1x1x1, gaps entry: wrote outside C",
    "writes between rows": r"exact 1x1x1, gaps entry: wrote outside C",  # it does so after the last row, too
    "writes whole 16 bytes": r"exact 19x69x129, aligned entry: wrote between the rows of C",
    "ignores ldc": r"exact 19x69x129, gaps entry: wrote between the rows of C",
    "ignores lda": r"exact 19x69x129, gaps entry: C\[\d+,0\] is .*, expected",
    "changes A": r"exact 1x1x1, device entry: changed A, an input",
}


@pytest.mark.parametrize("fault", UNSEEN_BY_THE_HOST_ENTRY)
def test_a_wrong_kernel_fails_its_selftest(ask: Any, fault: str) -> None:
    said = ask("selftest", PLAIN, fault)
    assert re.match(UNSEEN_BY_THE_HOST_ENTRY[fault], said["said"]), said
    assert said["contexts"] == 0


def test_a_driver_that_fails_under_a_selftest(ask: Any) -> None:
    said = ask("selftest_without_memory", PLAIN)
    names = ("cuMemAlloc", "cuMemcpyHtoD", "cuStreamSynchronize", "cuMemcpyDtoH")
    assert len(said["said"]) == len(names) and said["contexts"] == 0
    for name, text in zip(names, said["said"], strict=True):
        assert re.fullmatch(rf"exact 3x5x130, device entry: {name}(_v2)? failed: CUDA_ERROR_FAKE \(719\)", text)


def test_memory_of_the_device(ask: Any) -> None:
    said = ask("memory", PLAIN)
    assert said["same"] and len(said["said"]) == 5
    assert all("failed: CUDA_ERROR_FAKE (719)" in text for text in said["said"])
    assert (said["inside"], said["after"], said["kept"]) == (1, 0, 1), "the context is held, and the caller's put back"


# ---- Arrays of libraries, through the runtime ----


def test_arrays_by_their_interface_reach_the_device(ask: Any) -> None:
    """The fake driver is compiled against cuda.h, so gemmill.driver's ctypes calls meet the real signatures here."""
    said = ask("arrays", PLAIN)
    # One launch each; a wait, and its event given back, where a stream other than the call's is named.
    assert said["said"] == [[True, [1, 0, 0]], [True, [1, 1, 1]], [True, [1, 1, 1]]]
    assert said["cleared"], "K = 0 must clear C"
    (host, text), (failed, why) = said["refused"]
    assert host == "ArgumentError" and text.startswith("AQ is not device memory: the driver does not know")
    assert failed == "DeviceError" and why == "cuStreamWaitEvent failed: CUDA_ERROR_FAKE (719)"
    assert said["contexts"] == 1, "the caller's own, and nothing above it"
