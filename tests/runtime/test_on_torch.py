"""The way of CUDA tensors, on a fake torch and a fake kernel: plans, streams, devices, allocation, refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import gemmill
import ml_dtypes
import numpy as np
import pytest
from fake_device import DEVICES, device_of, stream_of, workspace_of
from fake_torch import Tensor, fake_torch
from gemmill import api, cuda
from gemmill.cache import Cache
from gemmill.errors import ArgumentError, DeviceError
from gemmill.layout import LAYOUTS
from gemmill.operands import Fp8Matrix, Int4Matrix, preshuffle_scale
from generators import check, forms, problem
from support import add_fake, fake_config

TILE = (4, 8, 128)


MODULES = ("on_torch", "guards", "torch")  # those that import torch


@pytest.fixture(params=["guards", "attributes"])
def torch(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return the fake torch, imported, on a machine with the devices of fake_device.DEVICES."""
    fake = fake_torch(request.param == "guards")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"gemmill.{name}", raising=False)
        monkeypatch.delattr(gemmill, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(api, "_paths", {})
    monkeypatch.setattr(cuda, "devices", lambda library="": DEVICES)
    cuda.arch_of_device.cache_clear()
    yield fake
    for name in MODULES:
        sys.modules.pop(f"gemmill.{name}", None)
    cuda.arch_of_device.cache_clear()


def add(cache: Cache, *defines: str, **options: Any) -> None:
    add_fake(cache.root, fake_config(arch="sm_90a", **{"tile": TILE, **options}), "TAKES_STREAM", *defines)


def operand(x: Any, index: int = 0) -> Any:
    return Int4Matrix(Tensor(x.data, index), x.shape, x.order) if isinstance(x, Int4Matrix) else Tensor(x, index)


def operands(p: Any, index: int = 0) -> tuple[Any, Any, Any]:
    return operand(p.a, index), operand(p.b, index), operand(p.aq, index)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", ["fp8", "bf8", "fp8i4", "bf8i4f32"])
def test_every_layout(found_cache: Cache, torch: Any, layout: str, variant: str) -> None:
    add(found_cache, variant=variant, layout=layout)
    p = problem(variant, 5, 6, 300, layout)
    for _ in range(2):  # planned, then from the plan
        c = gemmill.gemm_aquant(*operands(p))
        assert type(c) is Tensor and c.dtype is torch.float16
        check(c.x, p)


def test_a_repeated_call_makes_no_plan_and_asks_for_c_alone(found_cache, torch, monkeypatch) -> None:
    add(found_cache)
    p = problem("fp8", 5, 6, 300)
    gemmill.gemm_aquant(*operands(p))
    monkeypatch.setattr(import_module("gemmill.on_torch"), "make_plan", lambda *_: pytest.fail("planned again"))
    torch.state.allocated.clear()
    check(gemmill.gemm_aquant(*operands(p)).x, p)
    assert torch.state.allocated == [(5, 6)]
    with pytest.raises(pytest.fail.Exception):
        gemmill.gemm_aquant(*operands(problem("fp8", 6, 6, 300)))


def test_storage_forms_and_scales_in_another_order(found_cache: Cache, torch: Any) -> None:
    for layout in LAYOUTS:
        add(found_cache, layout=layout)
    p = problem("fp8", 4, 5, 260)
    for a in forms(p.a).values():
        for b in forms(p.b).values():
            for aq in (p.aq, np.asfortranarray(p.aq), np.repeat(p.aq, 2, axis=1)[:, ::2]):
                check(gemmill.gemm_aquant(Tensor(a), Tensor(b), Tensor(aq)).x, p)


def test_wrappers(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    add(found_cache, family="preshufflequant", tile=(4, 8, 256))
    p = problem("fp8", 5, 6, 300)
    a, b, aq = operands(p)
    told = Fp8Matrix(Tensor(p.b.view(np.uint8)), torch.float8_e4m3fn)
    check(gemmill.gemm_aquant(a, told, aq).x, p)
    shuffled = gemmill.PreshuffledScale(Tensor(preshuffle_scale(p.aq, 256).data), 3, 256)
    check(gemmill.gemm_aquant(a, b, shuffled).x, p)
    # Bytes of the same shape and strides that mean another type have a plan of their own.
    e5m2 = Fp8Matrix(Tensor(p.b.view(np.uint8)), torch.float8_e5m2)
    with pytest.raises(ArgumentError, match="no variant takes A float8_e4m3fn, B float8_e5m2"):
        gemmill.gemm_aquant(a, e5m2, aq)


def test_out_is_written_in_place(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    p = problem("fp8", 5, 6, 300)
    whole = np.full((5, 9), 7, np.float16)
    out = Tensor(whole[:, 1:7])
    for _ in range(2):
        assert gemmill.gemm_aquant(*operands(p), out) is out
        check(out.x, p)
        assert (whole[:, [0, 7, 8]] == 7).all()
        whole[:, 1:7] = 0


def test_the_stream_is_torchs_current_one_of_the_tensors_device(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 130)
    kernel = gemmill.load(fake_config(arch="sm_90a", tile=TILE).name, arch="sm_90a")
    for index, stream in ((0, 0), (0, 0x70), (2, 0x90), (0, 5)):
        torch.state.streams[index] = stream
        for _ in range(2):
            check(gemmill.gemm_aquant(*operands(p, index), kernel=kernel).x, p)
            assert (stream_of(kernel), device_of(kernel), torch.state.device) == (stream, index, 0)


def test_a_kernel_is_opened_with_the_tensors_device_current(found_cache, torch, monkeypatch) -> None:
    add(found_cache)
    on_torch, seen = import_module("gemmill.on_torch"), []
    make_plan = on_torch.make_plan
    monkeypatch.setattr(on_torch, "make_plan", lambda *args: (seen.append(torch.state.device), make_plan(*args))[1])
    gemmill.gemm_aquant(*operands(problem("fp8", 3, 4, 130), 2))
    assert seen == [2] and torch.state.device == 0


def test_a_workspace_comes_from_torch(found_cache: Cache, torch: Any) -> None:
    add(found_cache, "WANTS_WORKSPACE")
    p = problem("fp8", 3, 4, 130)
    check(gemmill.gemm_aquant(*operands(p)).x, p)
    assert (1000,) in torch.state.allocated


def test_without_memory_for_a_workspace_a_cuda_kernel_goes_without(found_cache: Cache, torch: Any) -> None:
    add(found_cache, "MAY_HAVE_WORKSPACE")
    p = problem("fp8", 3, 4, 130)
    kernel = gemmill.load(fake_config(arch="sm_90a", tile=TILE).name, arch="sm_90a")
    given = []
    for most in (1 << 30, 999, 1000):
        torch.state.most = most
        check(gemmill.gemm_aquant(*operands(p), kernel=kernel).x, p)
        given.append(workspace_of(kernel))
    assert given == [1000, 0, 1000]
    torch.state.most = 11
    with pytest.raises(torch.cuda.OutOfMemoryError):  # C
        gemmill.gemm_aquant(*operands(p), kernel=kernel)


def test_nothing_to_multiply_gives_zeros(torch: Any) -> None:
    out = Tensor(np.ones((3, 4), np.float16))
    assert gemmill.gemm_aquant(*operands(problem("fp8", 3, 4, 0)), out) is out
    assert not out.x.any()
    assert gemmill.gemm_aquant(*operands(problem("fp8", 0, 4, 130))).shape == (0, 4)


def test_a_failing_kernel_raises_with_its_text(found_cache: Cache, torch: Any) -> None:
    add(found_cache, "FAULT_RUN_FAILS")
    for index in (0, 2):
        with pytest.raises(DeviceError, match="device = 3"):
            gemmill.gemm_aquant(*operands(problem("fp8", 3, 4, 130), index))
        assert torch.state.device == 0


def good() -> dict[str, Any]:
    p = problem("fp8", 3, 4, 130)
    return dict(zip(("a_q", "b", "a_scale"), operands(p), strict=True))


class Subclass(Tensor):
    """A tensor subclass."""


REFUSED = {
    "numpy A": ({"a_q": problem("fp8", 3, 4, 130).a}, "A is a numpy.ndarray: needed a torch.Tensor, as B is one"),
    "a subclass": (
        {"a_scale": Subclass(problem("fp8", 3, 4, 130).aq)},
        "AQ is a .*Subclass, a subclass of torch.Tensor",
    ),
    "numpy out": ({"out": np.zeros((3, 4), np.float16)}, "out is a numpy.ndarray: needed a torch.Tensor"),
    "out elsewhere": ({"out": Tensor(np.zeros((3, 4), np.float16), 2)}, "out lies on cuda:2, the operands on cuda:0"),
    "column-major out": ({"out": Tensor(np.zeros((4, 3), np.float16).T)}, "out is not row-major"),
    "out of another type": ({"out": Tensor(np.zeros((3, 4)))}, "output dtype 'float64'"),
    "a stream": ({"stream": 3}, "stream is 3: torch tensors go on torch's current stream"),
    "another arch": ({"arch": "gfx942"}, "arch gfx942 with arrays on cuda:0, which runs sm_90a"),
    "no kernel": ({"kernel": ["x"]}, "kernel is a list: needed a gemmill.Kernel, a name or a key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(found_cache: Cache, torch: Any, name: str) -> None:
    add(found_cache)
    change, text = REFUSED[name]
    for _ in range(2):
        with pytest.raises(ArgumentError, match=text):
            gemmill.gemm_aquant(**{**good(), **change})
        check(gemmill.gemm_aquant(**good()).x, problem("fp8", 3, 4, 130))


def test_operands_on_two_devices_are_refused(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 130)
    a, b, aq = operands(p)
    out = Tensor(np.zeros((3, 4), np.float16))
    for _ in range(2):  # also where there is a plan: the C call is not going to ask
        for label, change in (("A", {"a_q": operand(p.a, 2)}), ("AQ", {"a_scale": operand(p.aq, 2)})):
            where = ", ".join(f"{name} on cuda:{2 if name == label else 0}" for name in ("A", "B", "AQ"))
            with pytest.raises(ArgumentError, match=f"the operands lie apart: {where}"):
                gemmill.gemm_aquant(**{"a_q": a, "b": b, "a_scale": aq, "out": out, **change})
        with pytest.raises(ArgumentError, match="out lies on cuda:2, the operands on cuda:0"):
            gemmill.gemm_aquant(a, b, aq, Tensor(out.x, 2))
        check(gemmill.gemm_aquant(a, b, aq, out).x, p)


def test_overlap_is_refused_and_rows_between_rows_are_none(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    p = problem("fp8", 3, 4, 260)
    block = np.zeros((3, 300), np.uint8)
    block[:, :260] = p.a.view(np.uint8)
    a = Tensor(block[:, :260].view(p.a.dtype))
    out = Tensor(block[:, 260:268].view(np.float16))
    gemmill.gemm_aquant(a, *operands(p)[1:], out)
    check(out.x, p)
    with pytest.raises(ArgumentError, match="out overlaps A in memory"):
        gemmill.gemm_aquant(a, *operands(p)[1:], Tensor(block[:, 254:262].view(np.float16)))


def test_tensors_at_one_address_have_plans_by_what_they_are(found_cache: Cache, torch: Any) -> None:
    """Weights may be viewed anew, and memory given to another tensor."""
    add(found_cache, layout="rcr")
    add(found_cache, layout="rrr")
    p = problem("fp8", 5, 6, 300)
    memory = np.zeros(6 * 300, np.uint8)
    other = {"a": p.a.view(ml_dtypes.float8_e5m2), "kept apart": np.repeat(p.aq, 2, axis=1)[:, ::2]}
    for _ in range(2):
        for order in "CF":
            b = memory.reshape((300, 6), order=order).view(p.b.dtype)
            b[...] = p.b
            for rows in (5, 2):
                a, aq = p.a[:rows], p.aq[:rows]
                whole = np.zeros((rows, 8), np.float16)
                for out in (None, np.zeros((rows, 6), np.float16), whole[:, 1:7]):
                    c = gemmill.gemm_aquant(Tensor(a), Tensor(b), Tensor(aq), None if out is None else Tensor(out))
                    assert np.array_equal(c.x, gemmill.gemm_aquant(*operands(p)).x[:rows])
                assert not whole[:, [0, 7]].any()
            with pytest.raises(ArgumentError, match="A float8_e5m2, B float8_e4m3fn"):
                gemmill.gemm_aquant(Tensor(other["a"]), Tensor(b), Tensor(p.aq))
            with pytest.raises(ArgumentError, match="AQ is a numpy"):
                gemmill.gemm_aquant(Tensor(p.a), Tensor(b), p.aq)
            check(gemmill.gemm_aquant(Tensor(p.a), Tensor(b), Tensor(other["kept apart"])).x, p)
            told = Fp8Matrix(Tensor(b.view(np.uint8)), "float8_e5m2")
            with pytest.raises(ArgumentError, match="no variant takes A float8_e4m3fn, B float8_e5m2"):
                gemmill.gemm_aquant(Tensor(p.a), told, Tensor(p.aq))
            for options, text in (
                ({"out_dtype": "float64"}, "output dtype"),
                ({"out_dtype": ""}, "output dtype"),
                ({"kernel": ""}, "neither a kernel's name nor a key"),
                ({"kernel": []}, "kernel is a list"),
                ({"arch": ""}, "unknown arch"),
                ({"arch": "gfx942"}, "arch gfx942"),
            ):
                with pytest.raises(ArgumentError, match=text):
                    gemmill.gemm_aquant(Tensor(p.a), Tensor(b), Tensor(p.aq), **options)


def test_guards_follow_what_attributes_do_not_tell(found_cache: Cache, torch: Any, monkeypatch: Any) -> None:
    """A plan that was made in torch's inference mode serves calls out of it, again without a look at attributes."""
    add(found_cache)
    on_torch = import_module("gemmill.on_torch")
    p = problem("fp8", 5, 6, 300)
    a, b, aq = operands(p)
    b.keys = "Inference, CUDA"
    gemmill.gemm_aquant(a, b, aq)
    monkeypatch.setattr(on_torch, "make_plan", lambda *_: pytest.fail("planned again"))
    b.keys = "CUDA"
    check(gemmill.gemm_aquant(a, b, aq).x, p)
    if hasattr(torch._C, "_dynamo"):
        monkeypatch.setattr(on_torch, "_find_plan", lambda *_: pytest.fail("looked up by attributes"))
    check(gemmill.gemm_aquant(a, b, aq).x, p)


def test_a_torch_whose_guards_are_others_is_served(found_cache: Cache, torch: Any, monkeypatch: Any) -> None:
    add(found_cache)
    guards = import_module("gemmill.guards")
    monkeypatch.setattr(guards, "_TensorGuards", lambda *tensors: pytest.fail("unlike torch's own"))
    p = problem("fp8", 5, 6, 300)
    for _ in range(2):
        check(gemmill.gemm_aquant(*operands(p)).x, p)


def test_streams_of_a_plan_are_bounded(found_cache: Cache, torch: Any) -> None:
    add(found_cache)
    on_torch = import_module("gemmill.on_torch")
    p = problem("fp8", 3, 4, 130)
    kernel = gemmill.load(fake_config(arch="sm_90a", tile=TILE).name, arch="sm_90a")
    for stream in range(1 << 40, (1 << 40) + 3 * on_torch._MOST_STREAMS):
        torch.state.streams[0] = stream
        gemmill.gemm_aquant(*operands(p), kernel=kernel)
        assert stream_of(kernel) == stream
    (plan,) = on_torch._plans.values()
    assert len(plan.by_stream) <= on_torch._MOST_STREAMS


def test_plans_are_bounded(found_cache: Cache, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(found_cache)
    on_torch = import_module("gemmill.on_torch")
    monkeypatch.setattr(type(on_torch._plans), "most", 3)
    for m in range(1, 9):
        p = problem("fp8", m, 4, 130)
        check(gemmill.gemm_aquant(*operands(p)).x, p)
        assert len(on_torch._plans) <= 3 and len(on_torch._placed) <= 3
