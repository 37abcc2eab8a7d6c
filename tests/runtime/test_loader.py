"""From names and keys to kernels: the order of checks, refusals with reasons, and misses."""

from __future__ import annotations

import json
import shutil
import threading
import time
import warnings
from dataclasses import replace

import gemmill
import pytest
from gemmill import arch as arch_table
from gemmill import cuda, device, loader
from gemmill.cache import MANIFEST, SELFTEST, Cache
from gemmill.errors import ArgumentError, CorruptObjectWarning, DeviceError, KernelNotFound, Refused
from gemmill.library import ABI_VERSION, call_pointers, call_rest
from gemmill.loader import Kernel, examine, load
from generators import DAMAGES, object_directory
from support import add_fake, add_index, add_object, config_json, fake_config, fake_library

NAME = fake_config().name


def test_load_by_name_key_and_arch_slash_name(cache):
    key = add_fake(cache.root)
    for wanted in (NAME, key, key[:6], f"generic/{NAME}"):
        kernel = load(wanted, cache.root)
        assert (kernel.name, kernel.key, kernel.arch, kernel.outcome) == (NAME, key, "generic", "passed")
        assert kernel.config["variant"] == "fp8"
        assert kernel.path == object_directory(cache, key) / "kernel.so"
    assert repr(kernel) == f"<Kernel generic/{NAME} {key[:12]} passed>"
    assert gemmill.load is load


def test_load_searches_the_path(found_cache, tmp_path):
    key = add_fake(found_cache.root)
    assert load(NAME).key == key
    with pytest.raises(KernelNotFound):
        load(NAME, tmp_path / "empty")


def test_a_miss_says_where_and_how_to_build(cache):
    with pytest.raises(KernelNotFound) as caught:
        load("gemm_aquant_x", [cache.root, cache.root / "absent"], arch="generic")
    assert str(caught.value).splitlines() == [
        "no usable kernel for generic/gemm_aquant_x",
        "caches searched:",
        f"  {cache.root} (argument)",
        f"  {cache.root / 'absent'} (argument), absent",
        "build it in the gemmill repository with ./mill 'selftest:generic/gemm_aquant_x', "
        "and name its cache in GEMMILL_CACHE",
    ]


@pytest.mark.parametrize("wanted", [None, b"x", 3, "", "../x", "a b", "x/y/z", "generic//etc/passwd", "*"])
def test_what_is_no_name_is_refused(cache, wanted):
    add_fake(cache.root)
    with pytest.raises(ArgumentError):
        load(wanted, cache.root)


def test_an_ambiguous_key_is_refused(cache, monkeypatch):
    monkeypatch.setattr(Cache, "keys", lambda self: ["abcdef" + "0" * 58, "abcdef" + "1" * 58])
    with pytest.raises(ArgumentError, match="2 objects whose key starts with abcdef"):
        load("abcdef", cache.root)


@pytest.mark.parametrize("outcome", [None, "simulated"])
def test_untested_objects_load_only_when_asked(cache, outcome):
    key = add_fake(cache.root, outcome=outcome)
    with pytest.raises(Refused, match=f"its selftest outcome is .*gemmill selftest {key[:12]}.*allow_untested=True"):
        load(NAME, cache.root)
    assert load(NAME, cache.root, allow_untested=True).outcome == (outcome or "untested")


def test_failed_objects_never_load(cache):
    add_fake(cache.root, outcome="failed", reason="C is all zeros")
    for allow in (False, True):
        with pytest.raises(Refused, match="its selftest failed: C is all zeros"):
            load(NAME, cache.root, allow_untested=allow)


def test_unknown_outcomes_do_not_load(cache):
    add_fake(cache.root, outcome="splendid")
    with pytest.raises(Refused, match="its selftest splendid"):
        load(NAME, cache.root, allow_untested=True)


def test_another_machine_is_refused(cache):
    add_fake(cache.root, target={"machine": "riscv64", "system": "Linux"})
    with pytest.raises(Refused, match="built for riscv64 Linux, this machine is "):
        load(NAME, cache.root)


def test_another_abi_is_refused_unopened_and_the_next_place_is_tried(cache, tmp_path, monkeypatch):
    key = add_fake(cache.root, inputs={"abi": ABI_VERSION - 1})
    text = f"built for ABI version {ABI_VERSION - 1}, this gemmill takes {ABI_VERSION}"
    assert examine(cache, key, allow_untested=True, any_device=True).refusal == text
    second = tmp_path / "second"
    add_fake(second, inputs={"abi": ABI_VERSION})
    assert load(NAME, [cache.root, second]).path.is_relative_to(second)
    monkeypatch.setattr(loader, "Library", lambda *arguments: pytest.fail("it was opened"))
    with pytest.raises(Refused, match=text):
        load(NAME, cache.root)


def test_a_generic_x86_kernel_on_aarch64_is_refused(cache, monkeypatch):
    add_fake(cache.root, target={"machine": "x86_64", "system": "Linux"})
    monkeypatch.setattr(loader.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(loader.platform, "system", lambda: "Linux")
    with pytest.raises(Refused, match="built for x86_64 Linux, this machine is aarch64 Linux"):
        load(NAME, cache.root)


def test_a_cpu_without_the_features_is_refused(cache, monkeypatch):
    config = fake_config(arch="x86-64-v4")
    add_fake(cache.root, config)
    monkeypatch.setattr(arch_table, "host_features", lambda cpuinfo="": frozenset({"avx2"}))
    monkeypatch.setattr(arch_table.platform, "machine", lambda: "x86_64")
    candidate = examine(cache, cache.keys()[0])
    if candidate.refusal.startswith("built for"):
        pytest.skip("the fake was built for another machine")
    assert "x86-64-v4 needs CPU features this host lacks: " in candidate.refusal
    assert "avx512f" in candidate.refusal
    with pytest.raises(Refused, match="needs CPU features this host lacks") as caught:
        load(config.name, cache.root)
    assert f"no usable kernel for x86-64-v4/{config.name}\n" in str(caught.value)
    assert "./mill" not in str(caught.value), "building it again would not help"


def test_a_cuda_kernel_says_which_device_is_missing(cache, monkeypatch):
    monkeypatch.setattr(cuda, "devices", lambda: [cuda.Device(0, "NVIDIA A100", (8, 0))])
    config = replace(fake_config(), arch="sm_90a", warp_tile=(1, 1, 32))
    add_object(cache.root, fake_library(fake_config()), config)
    wanted = r"no sm_90a device: needed compute capability 9\.0, the driver shows NVIDIA A100 \(8\.0\)"
    with pytest.raises(Refused, match=wanted):
        load(config.name, cache.root)


def test_a_hip_kernel_says_which_device_is_missing(cache, monkeypatch):
    monkeypatch.setattr(device, "hip_archs", lambda: ["gfx90a"])
    config = replace(fake_config(), arch="gfx942", warp_tile=(1, 1, 32))
    add_object(cache.root, fake_library(fake_config()), config)
    with pytest.raises(Refused, match="no gfx942 device here: the driver shows gfx90a"):
        load(config.name, cache.root)


def test_an_unknown_arch_is_an_argument_error(cache):
    with pytest.raises(ArgumentError, match="unknown arch 'sm_90': known archs are generic"):
        load(NAME, cache.root, arch="sm_90")


def test_arch_limits_the_search(cache):
    add_fake(cache.root)
    with pytest.raises(KernelNotFound, match=r"no usable kernel for x86-64-v3/"):
        load(NAME, cache.root, arch="x86-64-v3")


def test_untrusted_objects_are_refused_before_anything_is_read(cache, monkeypatch):
    key = add_fake(cache.root)
    (object_directory(cache, key) / "kernel.so").chmod(0o666)
    monkeypatch.setattr(Cache, "read", lambda self, key: pytest.fail("it was read"))
    with pytest.raises(Refused, match="can be written by everybody"):
        load(NAME, cache.root)


def test_a_planted_record_does_not_make_a_failed_kernel_load(cache):
    key = add_fake(cache.root, outcome=None)
    add_object(cache.root, fake_library(fake_config()), fake_config(), outcome="passed")
    (object_directory(cache, key) / SELFTEST).chmod(0o666)
    with pytest.raises(Refused, match=r"selftest.json can be written by everybody"):
        load(NAME, cache.root)


def test_everything_is_checked_before_the_library_is_opened(cache, monkeypatch):
    add_fake(cache.root, outcome=None)
    monkeypatch.setattr(loader, "Library", lambda *arguments: pytest.fail("it was opened"))
    with pytest.raises(Refused):
        load(NAME, cache.root)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_corrupt_object_is_a_miss_and_the_next_place_is_tried(cache, tmp_path, name):
    damage, text = DAMAGES[name]
    damage(object_directory(cache, add_fake(cache.root)))
    with pytest.warns(CorruptObjectWarning, match=text), pytest.raises(KernelNotFound, match=text):
        load(NAME, cache.root)
    second = tmp_path / "second"
    add_fake(second)
    with pytest.warns(CorruptObjectWarning, match=text) as caught:
        assert load(NAME, [cache.root, second]).path.is_relative_to(second)
    assert len(caught) == 1


def test_corruption_is_reported_once(cache):
    damage, _ = DAMAGES["flipped bit"]
    damage(object_directory(cache, add_fake(cache.root)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            with pytest.raises(KernelNotFound):
                load(NAME, cache.root)
    assert len(caught) == 1


def test_reading_a_corrupt_object_moves_nothing(cache):
    key = add_fake(cache.root)
    DAMAGES["flipped bit"][0](object_directory(cache, key))
    before = sorted(str(p) for p in cache.root.rglob("*"))
    with pytest.warns(CorruptObjectWarning), pytest.raises(KernelNotFound):
        load(NAME, cache.root)
    assert sorted(str(p) for p in cache.root.rglob("*")) == before


def test_an_index_entry_without_object_is_a_miss(cache):
    key = add_fake(cache.root)
    shutil.rmtree(object_directory(cache, key))
    with pytest.warns(CorruptObjectWarning, match="has no object"), pytest.raises(KernelNotFound):
        load(NAME, cache.root)


def test_an_index_entry_for_another_kernel_is_a_miss(cache):
    key = add_fake(cache.root)
    other = fake_config("bf8")
    add_index(cache.root, other, key)
    with pytest.warns(CorruptObjectWarning, match="the index calls it"), pytest.raises(KernelNotFound):
        load(other.name, cache.root)


@pytest.mark.parametrize(
    ("defines", "name", "error", "text"),
    [
        ((), "gemm_aquant_other", KernelNotFound, "it says that it is generic/gemm_aquant_other"),
        (("FAULT_OTHER_ABI",), None, Refused, "has ABI version 99; this gemmill takes 2"),
        (("FAULT_BAD_MANIFEST",), None, KernelNotFound, "embeds a manifest that is not JSON"),
        (("FAULT_NO_DEVICE",), None, Refused, "no device here"),
    ],
)
def test_a_library_that_is_not_what_it_should_be(cache, defines, name, error, text):
    config = fake_config()
    add_object(cache.root, fake_library(config, *defines, name=name), config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptObjectWarning)
        with pytest.raises(error, match=text):
            load(NAME, cache.root)


def test_what_is_no_library_is_a_miss(cache, tmp_path):
    library = tmp_path / "not-a-library.so"
    library.write_bytes(b"\x7fELF and nothing more")
    add_object(cache.root, library, fake_config())
    with pytest.warns(CorruptObjectWarning), pytest.raises(KernelNotFound, match=r"is no kernel library"):
        load(NAME, cache.root)


def test_a_library_without_the_abi_is_a_miss(cache):
    import ctypes.util
    from pathlib import Path

    libm = next((p for p in Path("/usr/lib").rglob("libm.so.6")), None) or Path(ctypes.util.find_library("m"))
    add_object(cache.root, libm.resolve(), fake_config())
    with (
        pytest.warns(CorruptObjectWarning),
        pytest.raises(KernelNotFound, match=r"no kernel library: .*gemmill_abi_version"),
    ):
        load(NAME, cache.root)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "xyz"},
        {"arch": "gfx942"},
        {"variant": []},
        {"tile": [1, 2]},
        {"tile": [1, 2, "3"]},
        {"out": "f8"},
        "tile",
    ],
    ids=str,
)
def test_a_config_that_names_no_kernel_is_refused(cache, change):
    config = config_json(fake_config())
    if isinstance(change, str):
        del config[change]
    else:
        config.update(change)
    key = add_fake(cache.root, inputs={"config": config})
    path = object_directory(cache, key) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": config}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptObjectWarning)
        with pytest.raises((Refused, KernelNotFound), match=r"config is not one|unknown layout|not the one of"):
            load(NAME, cache.root)


def test_the_best_arch_is_taken_first(cache, monkeypatch):
    rows = [arch_table.ARCHS["x86-64-v3"], arch_table.ARCHS["generic"]]
    monkeypatch.setattr(loader, "host_archs", lambda: rows)
    monkeypatch.setitem(device.BACKENDS, "cpu", lambda row: None)
    for name in ("generic", "x86-64-v3"):
        add_fake(cache.root, fake_config(arch=name))
    assert load(NAME, cache.root).arch == "x86-64-v3"
    assert load(NAME, cache.root, arch="generic").arch == "generic"
    assert load(f"generic/{NAME}", cache.root).arch == "generic"


def test_codes_become_exceptions(cache):
    add_fake(cache.root)
    library = load(NAME, cache.root).library
    with pytest.raises(ArgumentError, match=r"^M = -1: expected another value$"):
        library.check(library.run_host(1, 1, 1, 1, -1, 0, 0, 0, 0, 0, 0, 0, 1, None))
    with pytest.raises(gemmill.UnsupportedError, match="k_batch = 2"):
        library.check(library.run_host(1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, None))
    with pytest.raises(DeviceError):
        library.check(-3)
    with pytest.raises(DeviceError):
        library.check(7)
    library.check(0)
    assert library.kernel_count == 1
    assert library.kernel_name == NAME


def test_launch_says_what_run_says(cache):
    """Its argument is packed here: each size must be where the library reads it, with all 64 bits."""
    add_fake(cache.root)
    library = load(NAME, cache.root).library
    far = 1 << 40
    refused = {
        "M": (-far, 1, 1, 1, 1, 1, 1),
        "N": (1, -far, 1, 1, 1, 1, 1),
        "K": (1, 1, -far, 1, 1, 1, 1),
        "lda": (1, 1, far, far - 1, far, far, 1),
        "ldaq": (1, 1, far, far, far // 128 - 1, far, 1),
        "ldb": (1, 1, far, far, far // 128, far - 1, 1),
        "ldc": (1, far, 1, 1, 1, 1, far - 1),
    }
    for place, (name, sizes) in enumerate(refused.items()):
        said = []
        for code in (
            library.run(1, 1, 1, 1, *sizes, None, 0, None),
            library.launch(call_pointers(1, 1, 1, 1) + call_rest(sizes)),
        ):
            assert code == -1
            said.append(library.last_error)
        assert said == [f"{name} = {sizes[place]}: expected another value"] * 2


def test_a_failing_code_without_text_names_the_library(cache):
    add_fake(cache.root, fake_config(), "FAULT_NO_TEXT")
    with pytest.raises(DeviceError, match=r"kernel.so returned -3 and no text"):
        load(NAME, cache.root).library.check(-3)


def test_reading_a_read_only_cache_writes_nothing(cache):
    """As root no mode forbids writing, so compare what is there, with times."""
    add_fake(cache.root)
    for path in cache.root.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def state():
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_mode) for p in cache.root.rglob("*")}

    before = state()
    load(NAME, cache.root)
    assert state() == before


def test_a_kernel_survives_the_removal_of_its_cache(cache):
    from generators import check, problem

    add_fake(cache.root)
    kernel = load(NAME, cache.root)
    shutil.rmtree(cache.root)
    p = problem("fp8", 3, 5, 130)
    check(kernel(p.a, p.b, p.aq), p)
    with pytest.raises(KernelNotFound):
        load(NAME, cache.root)


def test_a_relocated_cache_loads(cache, tmp_path):
    add_fake(cache.root)
    cache.root.rename(tmp_path / "moved cache, ümlaut")
    assert isinstance(load(NAME, tmp_path / "moved cache, ümlaut"), Kernel)


def test_a_cache_that_is_removed_and_refilled_meanwhile(cache):
    """Whatever a reader meets half-way is a kernel, a miss or a refusal; never another error."""
    stop = threading.Event()
    fake_library(fake_config())

    def churn():
        while not stop.is_set():
            add_fake(cache.root)
            time.sleep(0.02)  # let the reader find it whole now and then
            shutil.rmtree(cache.root, ignore_errors=True)
            time.sleep(0.002)

    writer = threading.Thread(target=churn)
    writer.start()
    seen = set()
    try:
        end = time.monotonic() + 60
        rounds = 0
        while time.monotonic() < end and (rounds < 300 or not {"Kernel", "KernelNotFound"} <= seen):
            rounds += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CorruptObjectWarning)
                try:
                    seen.add(type(load(NAME, cache.root)).__name__)
                except (KernelNotFound, Refused) as error:
                    seen.add(type(error).__name__)
                list(cache.entries())
                cache.keys()
    finally:
        stop.set()
        writer.join()
    assert {"Kernel", "KernelNotFound"} <= seen
