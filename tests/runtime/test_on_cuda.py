"""CUDA arrays by their protocols, on a fake driver: values, streams, contexts, the host-pointer entry, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import gemmill
import ml_dtypes
import numpy as np
import pytest
from fake_device import DEVICES, CaiArray, DlpackArray, FakeDriver, stream_of, workspace_of
from gemmill import cuda, driver, on_cuda
from gemmill.arrays import view_of
from gemmill.cache import Cache
from gemmill.errors import ArgumentError, KernelNotFound, UnsupportedError
from gemmill.layout import LAYOUTS
from gemmill.operands import Fp8Matrix, Int4Matrix, preshuffle_scale
from generators import check, forms, problem
from support import add_fake, fake_config


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Return the driver of a machine with the devices of fake_device.DEVICES."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "libcuda", lambda: fake)
    monkeypatch.setattr(cuda, "devices", lambda library="": DEVICES)
    cuda.arch_of_device.cache_clear()
    on_cuda._plans.clear()
    yield fake
    cuda.arch_of_device.cache_clear()


def add(cache: Cache, variant: str = "fp8", layout: str = "rcr", family: str = "decode", **options: object) -> None:
    tile = (4, 8, 256) if family == "preshufflequant" else (4, 8, 128)
    config = fake_config(variant, layout, family, arch="sm_90a", tile=tile, **options)  # type: ignore[arg-type]
    add_fake(cache.root, config, "TAKES_STREAM")


def on(gpu: FakeDriver, x: np.ndarray, device: int = 0) -> np.ndarray:
    """Put an array's memory on a device."""
    gpu.own(x, device)
    return x


def cai(gpu: FakeDriver, x: np.ndarray, stream: int | None = None, **options: object) -> CaiArray:
    return CaiArray(on(gpu, x), stream, **options)  # type: ignore[arg-type]


def fp8(gpu: FakeDriver, x: np.ndarray, stream: int | None = None) -> Fp8Matrix:
    """Return an fp8 array as a library without the type has it: bytes."""
    on(gpu, x)
    return Fp8Matrix(CaiArray(x.view(np.uint8), stream), x.dtype)


def output(gpu: FakeDriver, m: int, n: int, stream: int | None = None) -> tuple[np.ndarray, CaiArray]:
    c = np.full((m, n), np.nan, np.float16)
    return c, cai(gpu, c, stream)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", ["fp8", "bf8", "fp8i4", "fp8i4f32"])
@pytest.mark.parametrize("protocol", ["cai", "dlpack 0.8", "dlpack 1.1"])
def test_every_layout_by_every_protocol(found_cache: Cache, gpu: FakeDriver, layout, variant, protocol) -> None:
    add(found_cache, variant, layout)
    p = problem(variant, 5, 6, 300, layout)

    def given(x: np.ndarray) -> object:
        on(gpu, x)
        if protocol != "cai":
            return DlpackArray(x, version=(0, 8) if "0.8" in protocol else (1, 1))
        return Fp8Matrix(CaiArray(x.view(np.uint8)), x.dtype) if x.itemsize == 1 else CaiArray(x)

    a = p.a
    if isinstance(a, Int4Matrix):
        bytes_ = on(gpu, a.data.copy())
        a = Int4Matrix(CaiArray(bytes_) if protocol == "cai" else DlpackArray(bytes_), p.a.shape, p.a.order)
    else:
        a = given(a)
    c = np.full((5, 6), np.nan, np.float16)
    out = given(c)
    for _ in range(2):  # planned, then from the plan
        assert gemmill.gemm_aquant(a, given(p.b), given(p.aq), out) is out
        check(c, p)
        c[...] = np.nan


def test_leading_dimensions_come_from_the_strides(found_cache: Cache, gpu: FakeDriver) -> None:
    for layout in LAYOUTS:
        add(found_cache, layout=layout)
    p = problem("fp8", 4, 5, 260)
    for a in forms(p.a).values():
        for b in forms(p.b).values():
            c = np.full((4, 9), np.nan, np.float16)
            part = c[:, 1:6]
            aq = np.asfortranarray(p.aq) if a.strides[0] == 1 and b.strides[0] == 1 else p.aq
            gemmill.gemm_aquant(fp8(gpu, a), fp8(gpu, b), cai(gpu, aq), cai(gpu, part))
            check(part, p)
            assert np.isnan(c[:, [0, 6, 7, 8]]).all()


def test_no_workspace_is_given(found_cache: Cache, gpu: FakeDriver) -> None:
    config = fake_config(arch="sm_90a", tile=(4, 8, 128))
    add_fake(found_cache.root, config, "TAKES_STREAM", "MAY_HAVE_WORKSPACE")
    kernel = gemmill.load(config.name, arch="sm_90a")
    p = problem("fp8", 3, 4, 130)
    c, out = output(gpu, 3, 4)
    gemmill.gemm_aquant(fp8(gpu, p.a), fp8(gpu, p.b), cai(gpu, p.aq), out, kernel=kernel)
    check(c, p)
    assert workspace_of(kernel) == 0


def test_preshuffled_scales(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache, family="preshufflequant")
    p = problem("fp8", 5, 6, 300)
    shuffled = preshuffle_scale(p.aq, 256)
    c, out = output(gpu, 5, 6)
    scale = gemmill.PreshuffledScale(cai(gpu, shuffled.data), 3, 256)
    gemmill.gemm_aquant(fp8(gpu, p.a), fp8(gpu, p.b), scale, out)
    check(c, p)


@pytest.mark.parametrize(
    ("named", "asked", "launched", "calls"),
    [
        ([None, None, None, None], None, 0, []),
        ([7, 7, 7, 7], None, 7, []),
        ([1, 1, 1, 1], None, 0, []),
        ([7, 8, 7, 7], None, 7, [("record", 8), ("wait", 7), ("destroy",)]),
        ([7, 7, 7, 7], 9, 9, [("record", 7), ("wait", 9), ("destroy",)]),
        ([1, None, 7, 7], None, 7, [("record", 0), ("wait", 7), ("destroy",)]),
        ([2, 2, 2, 2], 1, 0, [("record", 2), ("wait", 0), ("destroy",)]),
    ],
)
def test_the_stream_is_the_arrays_own_and_waits_for_others(
    found_cache: Cache, gpu: FakeDriver, named, asked, launched, calls
) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 130)
    c, out = output(gpu, 3, 4, named[3])
    kernel = gemmill.load(fake_config(arch="sm_90a", tile=(4, 8, 128)).name, arch="sm_90a")
    operands = (fp8(gpu, p.a, named[0]), fp8(gpu, p.b, named[1]), cai(gpu, p.aq, named[2]))
    gemmill.gemm_aquant(*operands, out, kernel=kernel, stream=asked)
    check(c, p)
    assert stream_of(kernel) == launched
    assert gpu.calls == calls


def test_a_dlpack_producer_is_told_the_stream_once(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 130)
    arrays = [DlpackArray(on(gpu, x)) for x in (p.a, p.b, p.aq, np.zeros((3, 4), np.float16))]
    gemmill.gemm_aquant(*arrays)
    gemmill.gemm_aquant(*arrays, stream=5)
    for x in arrays:
        assert x.asked == [{"stream": 1, "max_version": (1, 1)}, {"stream": 5, "max_version": (1, 1)}]
    assert gpu.calls == []


def test_the_arrays_device_becomes_current_and_is_put_back(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 130)
    c = np.zeros((3, 4), np.float16)
    for context in (0, None):
        gpu.context = context
        gpu.calls.clear()
        gemmill.gemm_aquant(*(DlpackArray(on(gpu, x, 2), (2, 2)) for x in (p.a, p.b, p.aq, c)))
        check(c, p)
        assert gpu.calls == [("retain", 2), ("push", 2), ("pop",), ("release", 2)]


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 128), (3, 0, 128)])
def test_nothing_to_multiply_clears_c_on_the_stream(gpu: FakeDriver, m, n, k) -> None:
    p = problem("fp8", m, n, k)
    whole = np.ones((max(m, 1), n + 2), np.float16)
    arrays = [DlpackArray(on(gpu, x)) for x in (p.a, p.b, p.aq, whole[:m, :n])]
    gemmill.gemm_aquant(*arrays, stream=6)
    assert (whole[:m, :n] == 0).all() and (whole[:m, n:] == 1).all()
    assert gpu.calls == ([("memset", 6)] if m and n else [])


def test_device_errors_are_raised_and_the_context_is_put_back(found_cache: Cache, gpu: FakeDriver) -> None:
    config = fake_config(arch="sm_90a", tile=(4, 8, 128))
    add_fake(found_cache.root, config, "FAULT_RUN_FAILS")
    p = problem("fp8", 3, 4, 130)
    arrays = [DlpackArray(on(gpu, x, 2), (2, 2)) for x in (p.a, p.b, p.aq, np.zeros((3, 4), np.float16))]
    with pytest.raises(gemmill.DeviceError, match="device = 3"):
        gemmill.gemm_aquant(*arrays)
    assert gpu.calls == [("retain", 2), ("push", 2), ("pop",), ("release", 2)]


def _arrays(gpu: FakeDriver) -> dict[str, object]:
    p = problem("fp8", 3, 4, 130)
    return {
        "a_q": DlpackArray(on(gpu, p.a)),
        "b": DlpackArray(on(gpu, p.b)),
        "a_scale": DlpackArray(on(gpu, p.aq)),
        "out": DlpackArray(on(gpu, np.zeros((3, 4), np.float16))),
    }


def _raising() -> DlpackArray:
    class Raising(DlpackArray):
        def __dlpack__(self, **options: object) -> object:
            raise BufferError("not exported")

    return Raising(np.zeros((3, 130), np.uint8))


FP8 = ml_dtypes.float8_e4m3fn
REFUSED = {
    "no out": ({"out": None}, "out is None: C is allocated for numpy arrays and torch tensors alone"),
    "A on the host": ({"a_q": np.zeros((3, 130), FP8)}, "A lies in host memory: needed CUDA memory, as B is a"),
    "AQ in DLPack's host memory": (
        {"a_scale": DlpackArray(np.zeros((3, 2), np.float32), (1, 0))},
        "AQ lies in host memory",
    ),
    "AQ on another device": (
        {"a_scale": DlpackArray(np.zeros((3, 2), np.float32), (2, 2))},
        "the operands lie apart: A on cuda:0, B on cuda:0, AQ on cuda:2; needed all on one device",
    ),
    "out on another device": (
        {"out": DlpackArray(np.zeros((3, 4), np.float16), (2, 2))},
        "out lies on cuda:2, the operands on cuda:0",
    ),
    "on an AMD device": (
        {"a_q": DlpackArray(np.zeros((3, 130), FP8), (10, 0))},
        "A lies on a device of DLPack type 10: needed CUDA or host memory",
    ),
    "a host pointer that says CUDA": (
        {"a_scale": CaiArray(np.zeros((3, 2), np.float32))},
        "AQ is not device memory: the driver does not know the address 0x",
    ),
    "bytes": (
        {"a_q": DlpackArray(np.zeros((3, 130), np.uint8))},
        r"no variant takes A uint8(.|\n)*told by gemmill.Fp8Matrix\(x, 'float8_e4m3fn'\)",
    ),
    "the other encoding": (
        {
            "a_q": DlpackArray(np.zeros((3, 130), ml_dtypes.float8_e4m3fnuz)),
            "b": DlpackArray(np.zeros((130, 4), ml_dtypes.float8_e4m3fnuz)),
        },
        "float8_e4m3fnuz is an fp8 type of the FNUZ encoding",
    ),
    "float64 scales": ({"a_scale": DlpackArray(np.zeros((3, 2)))}, "no variant takes .* AQ float64"),
    "complex": ({"a_scale": DlpackArray(np.zeros((3, 2), complex))}, "DLPack type code 3, 128 bits"),
    "gaps in both dimensions": (
        {"a_q": DlpackArray(np.zeros((6, 260), FP8)[::2, ::2])},
        "A is neither row- nor column-major",
    ),
    "scales in no order": (
        {"a_scale": DlpackArray(np.zeros((6, 4), np.float32)[::2, ::2])},
        "takes AQ row-major: it is copied to that for numpy arrays and torch tensors alone",
    ),
    "three dimensions": ({"a_q": DlpackArray(np.zeros((1, 3, 130), FP8))}, r"A has 3 dimensions, shape \(1, 3, 130\)"),
    "read-only out": ({"out": DlpackArray(np.zeros((3, 4), np.float16), flags=1)}, "out is read-only"),
    "out of another type": ({"out": DlpackArray(np.zeros((3, 4), np.float64))}, "output dtype 'float64'"),
    "out of another shape": ({"out": DlpackArray(np.zeros((4, 3), np.float16))}, r"out has shape \(4, 3\)"),
    "column-major out": ({"out": DlpackArray(np.zeros((4, 3), np.float16).T)}, "out is not row-major"),
    "DLPack 2": ({"a_q": DlpackArray(np.zeros((3, 130), FP8), version=(2, 0))}, "A is of DLPack 2.0: accepted are"),
    "a failing export": ({"a_q": _raising()}, "A: its __dlpack__ failed: BufferError: not exported"),
    "negative stream": ({"stream": -1}, "stream is -1: needed a CUstream"),
    "another arch": ({"arch": "gfx942"}, "arch gfx942 with arrays on cuda:0, which runs sm_90a"),
    "no array": ({"a_scale": [[1.0]]}, "AQ is a builtins.list: needed a numpy.ndarray, a torch.Tensor, or an array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(found_cache: Cache, gpu: FakeDriver, name: str) -> None:
    add(found_cache)
    change, text = REFUSED[name]
    good = _arrays(gpu)
    gemmill.gemm_aquant(**good)
    with pytest.raises(ArgumentError, match=text):
        gemmill.gemm_aquant(**{**good, **change})
    gemmill.gemm_aquant(**good)


def test_overlap_is_refused(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache)
    p = problem("fp8", 2, 65, 130)
    block = np.zeros(2 * 130 + 1, np.uint8)
    block[: p.a.size] = p.a.view(np.uint8).ravel()
    on(gpu, block)
    a = block[: p.a.size].view(p.a.dtype).reshape(p.a.shape)
    out = block[:260].view(np.float16).reshape(2, 65)
    with pytest.raises(ArgumentError, match="out overlaps A in memory"):
        gemmill.gemm_aquant(*(DlpackArray(on(gpu, x)) for x in (a, p.b, p.aq, out)))


def test_a_device_without_kernels_is_named(gpu: FakeDriver) -> None:
    p = problem("fp8", 3, 4, 130)
    arrays = [DlpackArray(on(gpu, x, 1), (2, 1)) for x in (p.a, p.b, p.aq, np.zeros((3, 4), np.float16))]
    text = r"device 1 \(Fake A100, compute capability 8.0\): there are kernels for sm_90a \(compute capability 9.0\)"
    with pytest.raises(UnsupportedError, match=text):
        gemmill.gemm_aquant(*arrays)


def test_interfaces_that_cannot_be_read(gpu: FakeDriver) -> None:
    good = cai(gpu, np.zeros((2, 2), np.float32))
    assert str(view_of("X", good)) == "float32 (2, 2), strides (8, 4) bytes on cuda:0"
    changes = {
        "can't be read": {"typestr": "?9"},
        "has a mask": {"mask": good},
        "names stream 0": {"stream": 0},
        "read: KeyError": {"data": None},
    }
    for text, change in changes.items():
        bad = cai(gpu, np.zeros((2, 2), np.float32))
        bad.__cuda_array_interface__.update(change)
        if change.get("data", 1) is None:
            del bad.__cuda_array_interface__["data"]
        with pytest.raises(ArgumentError, match=text):
            view_of("X", bad)


class BothProtocols(DlpackArray):
    """An array with both, as CuPy (version 3) and JAX (version 2) have them."""

    def __init__(self, x: np.ndarray, version: int, typestr: str, stream: int | None = None) -> None:
        super().__init__(x)
        plain = CaiArray(x.view(np.uint8) if x.itemsize == 1 else x, stream, version)
        self.__cuda_array_interface__ = {**plain.__cuda_array_interface__, "typestr": typestr}


@pytest.mark.parametrize(
    ("dtype", "version", "typestr", "by_dlpack"),
    [
        ("float32", 3, "<f4", False),
        ("float32", 2, "<f4", True),
        ("float8_e4m3fn", 3, "|V1", True),
        ("uint8", 3, "|u1", False),
    ],
)
def test_of_both_protocols_the_one_that_says_more_is_read(gpu: FakeDriver, dtype, version, typestr, by_dlpack) -> None:
    x = on(gpu, np.zeros((2, 3), getattr(ml_dtypes, dtype, dtype)))
    both = BothProtocols(x, version, typestr, 9)
    view = view_of("X", both, 4)
    assert (view.dtype, view.device, view.pointer) == (dtype, "cuda:0", x.ctypes.data)
    assert bool(both.asked) == by_dlpack
    assert view.stream == (4 if by_dlpack else 9)


# ---- numpy arrays for a GPU's kernel ---------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["fp8", "fp8i4f32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_arrays_go_through_the_host_pointer_entry(found_cache: Cache, gpu: FakeDriver, layout, variant) -> None:
    add(found_cache, variant, layout)
    p = problem(variant, 5, 6, 300, layout)
    check(gemmill.gemm_aquant(p.a, p.b, p.aq, arch="sm_90a"), p)
    whole = np.full((5, 9), 7, np.float16)
    gemmill.gemm_aquant(p.a, p.b, p.aq[::-1][::-1], whole[:, 1:7], arch="sm_90a")
    check(whole[:, 1:7], p)
    assert (whole[:, [0, 7, 8]] == 7).all()


def test_unpacked_and_preshuffled_numpy_arrays_too(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache)
    add(found_cache, family="preshufflequant")
    p = problem("fp8", 5, 6, 300)
    for form in ("C gaps", "unaligned"):
        b = forms(p.b)["F gaps"]
        check(gemmill.gemm_aquant(forms(p.a)[form], b, forms(p.aq)["F gaps"], arch="sm_90a"), p)
    check(gemmill.gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 256), arch="sm_90a"), p)


def test_numpy_arrays_never_go_to_a_gpu_unasked(found_cache: Cache, gpu: FakeDriver) -> None:
    add(found_cache)
    p = problem("fp8", 5, 6, 300)
    with pytest.raises(KernelNotFound):
        gemmill.gemm_aquant(p.a, p.b, p.aq)
    with pytest.raises(ArgumentError, match="stream is 1: numpy arrays have none"):
        gemmill.gemm_aquant(p.a, p.b, p.aq, arch="sm_90a", stream=1)
