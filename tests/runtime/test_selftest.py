"""The selftest: good kernels pass, each way of being bad is found, and the record says what happened."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from gemmill import cuda, device, selftest
from gemmill.cache import LIBRARY, MANIFEST, SELFTEST, Cache
from gemmill.errors import CorruptObject, Refused
from gemmill.fence import Arena, DeviceArena
from gemmill.harness import CheckFailed
from gemmill.loader import load
from gemmill.selfcheck import Checker, check_object
from gemmill.selftest import run_selftest
from generators import DAMAGES, FAULTS, configs, object_directory
from support import add_fake, add_object, fake_config, fake_library

from kernels import process


def record_file(cache: Cache, key: str) -> dict:
    return json.loads((object_directory(cache, key) / SELFTEST).read_text())


@pytest.fixture
def untested(cache: Cache) -> str:
    """Return the key of a good kernel without a record."""
    return add_fake(cache.root, outcome=None)


def test_a_good_kernel_passes_and_becomes_loadable(cache, untested):
    with pytest.raises(Refused):
        load(untested, cache)
    record = run_selftest(cache, untested)
    assert (record["outcome"], record["reason"], record["saved"]) == ("passed", None, True)
    assert load(untested, cache).outcome == "passed"


def test_the_record_says_what_was_done(cache, untested):
    record = run_selftest(cache, untested)
    on_disk = record_file(cache, untested)
    assert on_disk == {name: value for name, value in record.items() if name != "saved"}
    assert set(on_disk) == {
        "schema", "key", "library_sha256", "outcome", "reason", "device", "shapes", "entries", "errors", "seconds",
        "time_ms", "time_shape", "gemmill", "date",
    }  # fmt: skip
    assert on_disk["key"] == untested
    assert on_disk["library_sha256"] == cache.read(untested).manifest["files"][LIBRARY]["sha256"]
    assert set(on_disk["device"]) == {"cpu", "machine", "system", "arch"}
    assert on_disk["time_ms"] == 0.5  # what the fake claims
    assert on_disk["date"].endswith("+00:00")
    shapes = [tuple(shape) for shape in on_disk["shapes"]]
    tm, tn, tk = fake_config().tile
    assert any(m == 1 for m, n, k in shapes)
    assert any(0 < k < 128 for m, n, k in shapes)
    assert any(m > tm and m % tm and n > tn and n % tn and k > tk and k % 128 for m, n, k in shapes)
    assert {(3, 5, 0), (0, 5, 7), (5, 0, 7)} <= set(shapes)
    assert on_disk["entries"] == ["host", "device", "gaps"]
    random = [value for name, value in on_disk["errors"].items() if name.startswith("random")]
    assert len(random) == 3
    assert all(0 < value <= 1 for value in random)


def test_the_record_names_the_gpu(cache, untested, monkeypatch):
    monkeypatch.setattr(selftest, "gpu_name", lambda arch: "NVIDIA H200")
    run_selftest(cache, untested, run=lambda argv, timeout: PASSED)
    assert record_file(cache, untested)["device"]["gpu"] == "NVIDIA H200"


def test_names_of_gpus(monkeypatch):
    monkeypatch.setattr(device, "hip_archs", lambda: ["gfx942"])
    monkeypatch.setattr(cuda, "devices", lambda: [cuda.Device(0, "an A100", (8, 0)), cuda.Device(1, "an H200", (9, 0))])
    found = {arch: device.gpu_name(arch) for arch in ("generic", "sm_90a", "gfx942", "gfx950")}
    assert found == {"generic": None, "sm_90a": "an H200", "gfx942": "gfx942", "gfx950": None}
    monkeypatch.setattr(cuda, "devices", list)
    assert device.gpu_name("sm_90a") is None


def test_a_simulation_replaces_no_verdict_of_a_device(cache, untested, monkeypatch):
    run_selftest(cache, untested, run=lambda argv, timeout: PASSED)
    record = record_file(cache, untested)
    simulated = {**record, "outcome": "simulated", "device": {**record["device"], "simulated": True}}
    said = selftest._save(cache, simulated)
    assert not said["saved"]
    assert "passed on a real device counts more" in said["not_saved"]
    assert record_file(cache, untested) == record


@pytest.mark.parametrize("config", list(configs()), ids=lambda c: f"{c.variant}-{c.layout}-{c.family}")
def test_good_kernels_of_every_kind_pass(cache, config):
    """In this process: a fake that is right must not fail."""
    key = add_fake(cache.root, config, outcome=None)
    report = check_object(str(cache.root), key)
    assert (report["outcome"], report["reason"]) == ("passed", None)


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("variant", ["fp8", "bf8i4"])
def test_other_outputs_pass(cache, variant, out):
    key = add_fake(cache.root, fake_config(variant, "ccr", out=out), outcome=None)
    assert check_object(str(cache.root), key)["reason"] is None


def test_a_kernel_with_a_workspace_passes(cache):
    key = add_fake(cache.root, fake_config(), "WANTS_WORKSPACE", outcome=None)
    assert check_object(str(cache.root), key)["reason"] is None


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_and_recorded(cache, fault):
    import re

    key = add_fake(cache.root, fake_config(), fault, outcome=None)
    record = run_selftest(cache, key, timeout=60)
    assert record["outcome"] == "failed"
    assert re.search(FAULTS[fault], record["reason"]), record["reason"]
    assert record_file(cache, key)["outcome"] == "failed"
    with pytest.raises(Refused, match="its selftest failed"):
        load(key, cache, allow_untested=True)


@pytest.mark.parametrize("config", [fake_config("bf8i4", "ccr"), fake_config("fp8i4f32", "crr", "preshufflequant")])
@pytest.mark.parametrize("fault", ["FAULT_SWAPS_GROUPS", "FAULT_IGNORES_AQ", "FAULT_TRUNCATES", "FAULT_TAIL_UNWRITTEN"])
def test_faults_are_found_in_other_variants(cache, config, fault):
    key = add_fake(cache.root, config, fault, outcome=None)
    assert check_object(str(cache.root), key)["outcome"] == "failed"


def test_a_library_of_another_name_fails(cache):
    config = fake_config()
    key = add_object(cache.root, fake_library(config, name="gemm_aquant_other"), config, outcome=None)
    record = run_selftest(cache, key)
    assert record["outcome"] == "failed"
    assert "it says that it is generic/gemm_aquant_other" in record["reason"]


def test_a_hang_ends_at_the_time_limit(cache):
    key = add_fake(cache.root, fake_config(), "FAULT_HANGS", outcome=None)
    start = time.monotonic()
    record = run_selftest(cache, key, timeout=2)
    assert time.monotonic() - start < 10
    assert record["outcome"] == "failed"
    assert record["reason"] == "no end within 2 s during exact 1x1x1, host entry"


def test_a_failed_kernel_can_be_tested_again(cache, untested):
    run_selftest(cache, untested, run=lambda argv, timeout: (1, "", "out of memory"))
    assert cache.read(untested).outcome == "failed"
    assert run_selftest(cache, untested)["outcome"] == "passed"
    assert cache.read(untested).outcome == "passed"


def test_a_child_that_does_not_start_says_nothing_about_the_kernel(cache, untested):
    def run(argv, timeout):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    record = run_selftest(cache, untested, run=run)
    assert record["outcome"] == "untested"
    assert "the child process did not start" in record["reason"]
    assert "Cannot allocate memory" in record["reason"]
    assert not record["saved"]
    assert not (object_directory(cache, untested) / SELFTEST).exists()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ((-11, "step: exact\n", ""), "killed by SIGSEGV during exact"),
        ((-9, "", "Killed"), "killed by SIGKILL before its first check; it wrote: Killed"),
        ((-99, "", ""), "killed by signal 99"),
        ((0, "", ""), "exited with status 0 without a report before its first check"),
        ((0, "step: faults\nnonsense", ""), "exited with status 0 without a report during faults"),
        ((0, '{"outcome": "splendid"}', ""), "without a report"),
        ((0, "[1]", ""), "without a report"),
        ((3, '{"outcome": "passed", "reason": null}', ""), "exited with status 3 after its report"),
        (subprocess.TimeoutExpired("x", 60, b"step: codes of A\n"), "no end within 60 s during codes of A"),
        (TimeoutError(), "no end within 60 s before its first check"),
    ],
)
def test_what_becomes_of_the_child_is_a_result(cache, untested, result, text):
    def run(argv, timeout):
        if isinstance(result, BaseException):
            raise result
        return result

    record = run_selftest(cache, untested, run=run)
    assert record["outcome"] == "failed"
    import re

    assert re.search(text, record["reason"]), record["reason"]


def test_stopping_the_run_records_nothing(cache, untested):
    def run(argv, timeout):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_selftest(cache, untested, run=run)
    assert cache.read(untested).outcome == "untested"


def test_the_injected_runner_gets_the_command_and_the_limit(cache, untested):
    seen = []

    def run(argv, timeout):
        seen.append((list(argv), timeout))
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert run_selftest(cache, untested, timeout=7, run=run)["outcome"] == "passed"
    ((argv, timeout),) = seen
    assert (argv[0], argv[-5:], timeout) == (
        sys.executable, ["-m", "gemmill", "_selftest-child", str(cache.root), untested], 7
    )  # fmt: skip


def test_a_kernel_for_another_machine_is_untested_not_failed(cache):
    key = add_fake(cache.root, outcome=None, target={"machine": "riscv64", "system": "Linux"})
    record = run_selftest(cache, key, run=lambda argv, timeout: pytest.fail("it was started"))
    assert record["outcome"] == "untested"
    assert "built for riscv64" in record["reason"]
    assert record["saved"] is False
    assert not (object_directory(cache, key) / SELFTEST).exists()


@pytest.mark.parametrize("name", ["flipped bit", "no library", "broken manifest"])
def test_a_corrupt_object_is_not_tested(cache, untested, name):
    damage, text = DAMAGES[name]
    damage(object_directory(cache, untested))
    with pytest.raises(CorruptObject, match=text):
        run_selftest(cache, untested, run=lambda argv, timeout: pytest.fail("it was started"))


def test_record_false_writes_nothing(cache, untested):
    record = run_selftest(cache, untested, record=False)
    assert (record["outcome"], record["saved"]) == ("passed", False)
    assert not (object_directory(cache, untested) / SELFTEST).exists()


PASSED = (0, '{"outcome": "passed", "reason": null}', "")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("call", ["mkstemp", "fsync", "replace"])
def test_a_place_that_cannot_be_written_is_said_and_left_as_it_was(cache, untested, monkeypatch, call, number):
    module = {"mkstemp": tempfile, "fsync": os, "replace": Path}[call]

    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    before = sorted(object_directory(cache, untested).iterdir())
    monkeypatch.setattr(module, call, fail)
    record = run_selftest(cache, untested, run=lambda argv, timeout: PASSED)
    monkeypatch.undo()
    assert (record["outcome"], record["saved"]) == ("passed", False)
    assert record["not_saved"].endswith(f"selftest.json: {os.strerror(number)}")
    assert sorted(object_directory(cache, untested).iterdir()) == before


def test_the_record_is_replaced_in_one_step(cache, untested, monkeypatch):
    """Whoever reads meanwhile sees the old record or the new one, never a part."""
    run_selftest(cache, untested, run=lambda argv, timeout: (1, "", ""))
    seen = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(cache.read(untested).outcome), fsync(fd))[1])
    run_selftest(cache, untested, run=lambda argv, timeout: PASSED)
    assert seen == ["failed"]
    assert cache.read(untested).outcome == "passed"
    assert {p.name for p in object_directory(cache, untested).iterdir()} == {"kernel.so", "manifest.json", SELFTEST}


@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_whoever_may_read_the_manifest_may_read_the_record(cache, untested, mode):
    folder = object_directory(cache, untested)
    (folder / MANIFEST).chmod(mode)
    cache.root.chmod(mode | 0o111)
    before = os.umask(0o077)
    try:
        assert run_selftest(cache, untested)["saved"]
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / SELFTEST).stat().st_mode) == mode


def test_the_child_takes_no_gemmill_from_the_working_directory(cache, untested, tmp_path, monkeypatch):
    (tmp_path / "gemmill").mkdir()
    (tmp_path / "gemmill" / "__init__.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no safe path")
    assert run_selftest(cache, untested)["outcome"] == "passed"
    # Whichever runner it is given.
    assert run_selftest(cache, untested, run=process.run)["outcome"] == "passed"


def test_run_child_kills_what_the_child_started():
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        selftest.run_child([sys.executable, "-c", code], 1.5)
    # It returns only when all ends of the pipe are closed, so the grandchild is gone too.
    assert time.monotonic() - start < 10
    assert caught.value.stdout == "up\n"


def test_run_child_returns_code_and_streams():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert selftest.run_child([sys.executable, "-c", code], 60) == (3, "out\n", "err\n")


def test_a_record_of_another_version_of_the_library_is_ignored(cache, untested):
    run_selftest(cache, untested)
    path = object_directory(cache, untested) / SELFTEST
    path.write_text(path.read_text().replace(record_file(cache, untested)["library_sha256"], "0" * 64))
    assert cache.read(untested).outcome == "untested"


# The exact check's arithmetic, which its verdict rests on.


@pytest.mark.parametrize("config", list(configs()), ids=lambda c: f"{c.variant}-{c.layout}-{c.family}")
@pytest.mark.parametrize("out", ["f16", "bf16", "f32"])
def test_exact_problems_are_exact_in_float32(cache, config, out):
    config = fake_config(config.variant, config.layout, config.family, out=out)
    add_fake(cache.root, config, outcome="passed")
    checker = Checker(load(config.name, cache))
    for m, n, k in [*checker.tail_shapes(), (260, 20, 1100)]:
        a, b, aq = checker.integers(m, k), checker.integers(k, n), checker.powers(m, k)
        problem = checker.problem(a, b, aq)
        assert np.array_equal(problem.aq, aq)  # the type holds each power
        assert np.array_equal(problem.b, b)
        mantissa, _ = np.frexp(aq)
        assert (mantissa == 0.5).all()
        for row in aq:
            assert np.unique(row).size == row.size
        # No sum of terms, whatever its order, exceeds 2^24 units of the row's smallest scale.
        terms = np.abs(problem.a) @ np.abs(problem.b) * aq.sum(axis=1, keepdims=True)
        assert (terms / aq.min(axis=1, keepdims=True) < 2**24).all()
        low, high = checker._exponents()
        if aq.size <= high - low + 1 and aq.size > 0 and k:
            assert np.unique(aq).size == aq.size


def test_the_checker_finds_swapped_rows_of_scales(cache, monkeypatch):
    add_fake(cache.root)
    checker = Checker(load(fake_config().name, cache))
    run = checker.run

    def swapped(problem, entry="host", shift=0):
        c = run(problem, entry, shift)
        return c[::-1]

    monkeypatch.setattr(checker, "run", swapped)
    with pytest.raises(CheckFailed, match="expected"):
        checker.check_all()


def test_a_kernel_that_writes_beside_its_workspace_fails(cache):
    key = add_fake(cache.root, fake_config(), "WANTS_WORKSPACE", "FAULT_WRITES_BEFORE_WORKSPACE", outcome=None)
    assert check_object(str(cache.root), key)["reason"] == "exact 1x1x1, device entry: wrote outside workspace"


def test_a_kernel_with_limits_is_tested_within_them(cache, monkeypatch):
    """A library of another provider may take some sizes only; it must then never see the others."""
    add_fake(cache.root)
    checker = Checker(load(fake_config().name, cache))
    checker.limits = {"n": 8, "k": 256, "not_k": 512}
    assert list(checker.entries(3, 5, 130)) == ["host", "device"], "it may want its operands packed"
    assert checker.fit(3, 5, 0) == (3, 8, 0) and checker.fit(3, 8, 512) == (3, 8, 768)
    seen = set()
    run_host = checker.library.run_host

    def spy(*arguments):
        seen.add(arguments[4:7])
        return run_host(*arguments)

    checker.check_faults()
    monkeypatch.setattr(checker.library, "run_host", spy)
    monkeypatch.setattr(checker, "check_faults", lambda: None)
    checker.check_all()
    assert len(seen) > 5
    assert all(n % 8 == 0 and k % 256 == 0 and (k % 512 or k == 0) for _, n, k in seen)
    assert all([n % 8, k % 256] == [0, 0] for _, n, k in checker.shapes)


def test_codes_cover_every_byte(cache):
    """Each of the 256 byte values of A, B and an fp8 AQ occurs; for int4, each pair of codes."""
    for config in (fake_config("fp8"), fake_config("fp8i4f32"), fake_config("bf8i4", "ccr")):
        add_fake(cache.root, config)
        checker = Checker(load(config.name, cache))
        seen = {"A": set(), "B": set(), "AQ": set()}
        run = checker.run

        def spy(problem, entry="host", shift=0, checker=checker, seen=seen, run=run):
            c = run(problem, entry, shift)
            for name in seen:
                seen[name] |= set(checker.host[name].read()[0].tolist())
            return c

        checker.run = spy
        checker.check_codes()
        assert len(seen["A"]) == 256
        assert len(seen["B"]) == 256
        assert len(seen["AQ"]) == 256 or checker.kinds["aq"] == "f32"


def test_scales_meet_every_rounding_of_the_output(cache):
    """float32 scales put C of either sign on float16 numbers, on the middles between two, and beside those."""
    add_fake(cache.root)
    values = Checker(load(fake_config().name, cache))._near_halves().astype(np.float64)
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float64)
    assert (rounded == values).sum() == 64
    assert (rounded > values).sum() > 64 < (rounded < values).sum()
    assert np.isinf(rounded).any()
    assert 2.0**-25 in abs(values)
    assert (values < 0).sum() > 100 < (values > 0).sum()


# Fences


def test_an_arena_ends_where_its_memory_ends():
    arena = Arena()
    content = np.arange(100, dtype=np.uint8)
    arena.place(content)
    held, intact = arena.read()
    assert np.array_equal(held, content) and intact
    assert arena.address() == held.ctypes.data
    assert (arena.address() + 100) % 4096 == 0
    held[:] = 0
    assert arena.read()[1]


def test_an_arena_grows_and_shifts():
    arena = Arena(10)
    arena.place(np.ones(100_000, np.uint8), shift=3)
    held, intact = arena.read()
    assert held.size == 100_000 and intact
    assert (arena.address() + 100_003) % 4096 == 0


@pytest.mark.parametrize("offset", [-1, -256, 10])
def test_an_arena_sees_writes_beside_the_operand(offset):
    arena = Arena()
    arena.place(np.zeros(10, np.uint8), shift=5)
    arena._pages[arena._start + offset] = 1
    assert not arena.read()[1]


class HostMemory:
    """What stands in for a device's memory: numpy arrays by address."""

    def __init__(self):
        self.blocks = {}

    def allocate(self, size):
        block = np.zeros(size + 256, np.uint8)
        address = -(-block.ctypes.data // 256) * 256
        self.blocks[address] = block[address - block.ctypes.data :]
        return address

    def free(self, address):
        del self.blocks[address]

    def upload(self, address, data):
        self.blocks[address][: data.size] = data

    def download(self, address, size):
        return self.blocks[address][:size].copy()


def test_an_arena_on_a_device_keeps_one_allocation_and_grows():
    memory = HostMemory()
    arena = DeviceArena(memory)
    for size, shift in ((100, 0), (0, 0), (100_000, 4), (7, 1)):
        content = np.arange(size).astype(np.uint8)
        arena.place(content, shift)
        held, intact = arena.read()
        assert intact and np.array_equal(held, content)
        assert arena.address() % 256 == shift
        assert len(memory.blocks) == 1


@pytest.mark.parametrize("offset", [-16384, -1, 10, 16393])
def test_an_arena_on_a_device_sees_writes_beside_the_operand(offset):
    memory = HostMemory()
    arena = DeviceArena(memory)
    arena.place(np.zeros(10, np.uint8))
    ((base, block),) = memory.blocks.items()
    block[arena.address() - base + offset] = 0
    assert not arena.read()[1]


@pytest.mark.parametrize("access", ["x.from_address(end).value", "setattr(x.from_address(end), 'value', 1)"])
def test_touching_what_follows_is_a_fault(access):
    code = (
        "import ctypes, numpy\nfrom gemmill.fence import Arena\narena = Arena()\n"
        "arena.place(numpy.zeros(10, numpy.uint8))\nx, end = ctypes.c_uint8, arena.address() + OFFSET\n"
    )
    inside = subprocess.run([sys.executable, "-c", code.replace("OFFSET", "9") + access], check=False)
    outside = subprocess.run([sys.executable, "-c", code.replace("OFFSET", "10") + access], check=False)
    assert inside.returncode == 0
    assert outside.returncode == -11
