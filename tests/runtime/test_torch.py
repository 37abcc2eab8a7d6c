"""gemm_aquant on real torch tensors in host memory, and the operator; skipped where torch is not installed.

What needs a CUDA device is in tests/gpu/test_cuda_arrays.py.
"""

from __future__ import annotations

from importlib import import_module

import gemmill
import numpy as np
import pytest
from gemmill.arrays import view_of
from gemmill.dlpack import read_dlpack
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS
from gemmill.operands import Fp8Matrix, Int4Matrix, PreshuffledScale, preshuffle_scale
from generators import check, forms, problem
from support import add_fake, fake_config

torch = pytest.importorskip("torch", reason="torch is not installed")

CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")


def tensor(x: np.ndarray):
    """Return a tensor over a numpy array's memory."""
    name = x.dtype.name
    codes = x.view(np.uint8) if x.itemsize == 1 else x.view(np.int16) if name == "bfloat16" else x
    return torch.from_numpy(codes).view(getattr(torch, name))


def operand(x):
    return Int4Matrix(tensor(x.data), x.shape, x.order) if isinstance(x, Int4Matrix) else tensor(x)


def values(c) -> np.ndarray:
    return c.to(torch.float32).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", ["fp8", "bf8", "fp8i4", "bf8i4f32"])
def test_every_layout(found_cache, layout, variant):
    add_fake(found_cache.root, fake_config(variant, layout))
    p = problem(variant, 5, 6, 300, layout)
    c = gemmill.gemm_aquant(operand(p.a), operand(p.b), operand(p.aq))
    assert c.dtype == torch.float16
    check(values(c), p)


@pytest.mark.parametrize("out", ["f16", "bf16", "f32"])
def test_outputs(found_cache, out):
    add_fake(found_cache.root, fake_config(out=out))
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[out]
    p = problem("fp8", 4, 6, 200, out=out)
    a, b, aq = (operand(x) for x in (p.a, p.b, p.aq))
    c = gemmill.gemm_aquant(a, b, aq, out_dtype=dtype)
    assert c.dtype == dtype
    check(values(c), p)
    whole = torch.full((4, 9), 7, dtype=dtype)
    part = whole[:, 1:7]
    assert gemmill.gemm_aquant(a, b, aq, part) is part
    check(values(part), p)
    assert (whole[:, [0, 7, 8]] == 7).all()


def test_forms_wrappers_and_scales(found_cache):
    add_fake(found_cache.root)
    add_fake(found_cache.root, fake_config(family="preshufflequant"))
    p = problem("fp8", 5, 6, 300)
    b = operand(p.b)
    for a in (forms(p.a)["C"], forms(p.a)["C gaps"]):
        for aq in forms(p.aq).values():
            check(values(gemmill.gemm_aquant(tensor(a), b, tensor(aq))), p)
    told = Fp8Matrix(b.view(torch.uint8), torch.float8_e4m3fn)
    check(values(gemmill.gemm_aquant(operand(p.a), told, operand(p.aq))), p)
    shuffled = preshuffle_scale(operand(p.aq), 256)
    assert isinstance(shuffled, PreshuffledScale) and torch.is_tensor(shuffled.data)
    assert np.array_equal(shuffled.data.numpy(), preshuffle_scale(p.aq, 256).data)
    check(values(gemmill.gemm_aquant(operand(p.a), b, shuffled)), p)
    parameter = torch.nn.Parameter(b, requires_grad=False)
    check(values(gemmill.gemm_aquant(operand(p.a), parameter, operand(p.aq))), p)


class Subclass(torch.Tensor):
    """A tensor of a kind that may keep its data elsewhere."""


REFUSED = {
    "A of numpy": (
        lambda a, b, aq: (a.view(torch.uint8).numpy(), b, aq),
        "A is a numpy.ndarray: needed a torch.Tensor",
    ),
    "AQ of numpy": (lambda a, b, aq: (a, b, aq.numpy()), "AQ is a numpy.ndarray: needed a torch.Tensor"),
    "B on meta": (lambda a, b, aq: (a, b.to("meta"), aq), "B lies on device meta: needed a CUDA device or the CPU"),
    "A on meta": (lambda a, b, aq: (a.to("meta"), b, aq), "A lies on device meta"),
    "sparse": (lambda a, b, aq: (a, b, aq.to_sparse()), "AQ has layout torch.sparse_coo: needed a dense tensor"),
    "a subclass": (
        lambda a, b, aq: (a, b, aq.as_subclass(Subclass)),
        "AQ is a .*Subclass, a subclass of torch.Tensor: needed a plain tensor",
    ),
    "B a subclass": (
        lambda a, b, aq: (a, b.as_subclass(Subclass), aq),
        "B is a .*Subclass, a subclass of torch.Tensor",
    ),
    "bytes": (lambda a, b, aq: (a.view(torch.uint8), b, aq), r"Fp8Matrix\(x, 'float8_e4m3fn'\)"),
    "float32": (lambda a, b, aq: (a.float(), b, aq), "no variant takes A float32"),
    "gaps": (
        lambda a, b, aq: (torch.zeros((10, 600), dtype=torch.uint8).view(a.dtype)[::2, ::2], b, aq),
        "A is neither row- nor column-major",
    ),
    "one scale a row": (lambda a, b, aq: (a, b, aq[:, :1]), r"AQ has shape \(5, 1\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(found_cache, name):
    add_fake(found_cache.root)
    change, text = REFUSED[name]
    p = problem("fp8", 5, 6, 300)
    good = tuple(operand(x) for x in (p.a, p.b, p.aq))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=text):
            gemmill.gemm_aquant(*change(*good))
        check(values(gemmill.gemm_aquant(*good)), p)


def test_options_are_refused(found_cache):
    add_fake(found_cache.root)
    p = problem("fp8", 5, 6, 300)
    good = tuple(operand(x) for x in (p.a, p.b, p.aq))
    with pytest.raises(ArgumentError, match="stream is 7: torch tensors go on torch's current stream"):
        gemmill.gemm_aquant(*good, stream=7)
    with pytest.raises(ArgumentError, match="out overlaps AQ"):
        flat = torch.zeros(60, dtype=torch.float32)
        gemmill.gemm_aquant(*good[:2], flat[:15].view(5, 3), flat.view(torch.float16)[:30].view(5, 6))
    with pytest.raises(ArgumentError, match=r"output dtype torch.float64: accepted are"):
        gemmill.gemm_aquant(*good, out_dtype=torch.float64)


def test_guards_see_every_difference():
    """They are torch's own and not public: this is what gemmill.on_torch builds on."""
    guard_of = import_module("gemmill.guards").guard_of
    a = torch.zeros((5, 300)).to(torch.float8_e4m3fn)
    b = torch.zeros((6, 300)).to(torch.float8_e4m3fn).t()
    aq, out = torch.zeros((5, 3)), torch.zeros((5, 6), dtype=torch.float16)
    alike = guard_of(a, b, aq, out)
    assert alike and alike(a, b, aq, out) and alike(a.clone(), b.clone(), aq + 1, out + 1)
    unlike = {
        "shape": a[:4],
        "rows": torch.zeros((5, 304)).to(a.dtype)[:, :300],
        "columns": a.t().contiguous().t(),
        "dtype": a.view(torch.float8_e5m2),
        "bytes": a.view(torch.uint8),
        "dimensions": a[None],
        "device": a.to("meta"),
        "layout": torch.zeros((5, 300)).to_sparse(),
        "subclass": a.as_subclass(Subclass),
        "parameter": torch.nn.Parameter(a, requires_grad=False),
        "array": a.view(torch.uint8).numpy(),
        "wrapper": Int4Matrix(torch.zeros(750, dtype=torch.uint8), (5, 300)),
        "nothing": None,
    }
    for name, x in unlike.items():
        assert not alike(x, b, aq, out), name
        assert not guard_of(out, a)(out, x), name
    with torch.inference_mode():
        inside = a.clone()
        alike(a, b, aq, out)  # either answer is right; it must not fail
    assert not alike(inside, b, aq, out)
    assert guard_of(inside, b, aq, out)(inside, b, aq, out)


def test_dlpack_as_torch_exports_it():
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16", "float32", "uint8"):
        x = torch.zeros((4, 6), dtype=torch.float32).to(getattr(torch, name))[1:, 2:]
        assert read_dlpack("x", x, 0) == view_of("x", x)


# ---- The operator ----------------------------------------------------------------------------------------


@pytest.fixture
def operator():
    import_module("gemmill.torch")  # registers it
    return torch.ops.gemmill.gemm_aquant


def test_the_operator_and_its_checks(found_cache, operator):
    for variant in ("fp8", "fp8i4f32"):
        add_fake(found_cache.root, fake_config(variant))
    add_fake(found_cache.root, fake_config(family="preshufflequant"))
    p = problem("fp8", 5, 6, 300)
    a, b, aq = (operand(x) for x in (p.a, p.b, p.aq))
    int4 = problem("fp8i4f32", 5, 6, 300)
    calls = [
        (p, (a, b, aq), {}),
        (p, (a, b, aq), {"out_dtype": torch.float16}),
        (p, (a, b, preshuffle_scale(aq, 256).data), {"tile_k": 256}),
        (int4, (tensor(int4.a.data), operand(int4.b), operand(int4.aq)), {"int4_order": "C"}),
    ]
    for expected, operands, options in calls:
        check(values(operator(*operands, **options)), expected)
        # test_schema compares the operands before and after, which torch can't do for its fp8 types.
        torch.library.opcheck(operator, operands, options, test_utils=CHECKS)


def test_the_operator_compiles_with_any_number_of_rows(found_cache, operator):
    add_fake(found_cache.root)

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def layer(a, b, aq):
        return operator(a, b, aq).relu()

    for m in (2, 5, 9):
        p = problem("fp8", m, 6, 300)
        c = layer(*(operand(x) for x in (p.a, p.b, p.aq)))
        expected = gemmill.gemm_aquant(*(operand(x) for x in (p.a, p.b, p.aq))).relu()
        assert torch.equal(c, expected)


def test_the_operator_on_meta_tensors_gives_shape_and_type(operator):
    a, b = torch.empty((3, 256), device="meta"), torch.empty((256, 7), device="meta")
    c = operator(a, b, torch.empty((3, 2), device="meta"), out_dtype=torch.bfloat16)
    assert (c.shape, c.dtype, c.device.type) == ((3, 7), torch.bfloat16, "meta")
    with pytest.raises(RuntimeError, match="their K differ"):
        operator(a, b.t(), torch.empty((3, 2), device="meta"))
