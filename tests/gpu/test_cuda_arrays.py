"""gemm_aquant on CUDA arrays of torch and by the protocols, on a device; skipped, with the reason, where there is none.

Runs under pytest, and without it:

    GEMMILL_CACHE=cache python3 tests/gpu/test_cuda_arrays.py [PART OF A NAME ...]

Operands are small integers and scales powers of two, so that float32 sums are exact and every result has one right
value; sums fit float16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

if __name__ == "__main__":  # from a checkout, whether or not the package is installed
    from run import find_modules

    find_modules()

import gemmill
import numpy as np
from gemmill.arch import find_arch
from gemmill.choice import Wanted, choose_kernel, explain_choice, forget
from gemmill.cuda import why_not_cuda
from gemmill.errors import ArgumentError, DeviceError, KernelNotFound
from gemmill.layout import LAYOUTS, groups
from gemmill.operands import pack_codes
from gemmill.variant import INT4, VARIANTS

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

REASON = why_not_cuda(find_arch("sm_90a")) or ("torch is not installed" if torch is None else None)

try:
    import pytest
except ImportError:
    pytest = None  # type: ignore[assignment]
else:
    pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

SHAPES = [(1, 128, 256), (16, 64, 384), (64, 256, 512), (200, 136, 130), (129, 256, 1024)]
OUTPUTS = ("f16", "bf16")


class Case:
    """One product on the device: operands in a variant's types and a layout's order, and the right C (float64)."""

    def __init__(self, variant: str, layout: str, shape: tuple[int, int, int], seed: int = 0) -> None:
        m, n, k = shape
        row, order = VARIANTS[variant], LAYOUTS[layout]
        rng = np.random.default_rng(seed)
        fp8 = {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "f32": torch.float32}
        # One product in four is not zero, so that sums stay small.
        a = rng.integers(-2, 3, (m, k)) * (rng.random((m, k)) < 0.5)
        b = rng.integers(-2, 3, (k, n)) * (rng.random((k, n)) < 0.5)
        aq = np.exp2(rng.integers(-2, 2, (m, groups(k))).astype(np.float64))
        self.shape, self.variant, self.layout = shape, variant, layout
        if row.a == INT4:
            codes = (a.ravel(order="F" if order.a_col else "C") + 8).astype(np.uint8)
            data = torch.from_numpy(pack_codes(codes)).cuda()
            self.a: Any = gemmill.Int4Matrix(data, (m, k), "F" if order.a_col else "C")
        else:
            self.a = _stored(a, order.a_col, fp8[row.a])
        self.b = _stored(b, order.b_col, fp8[row.b])
        self.aq = _stored(aq, order.aq_col, fp8[row.aq])
        whole = np.repeat(aq, 128, axis=1)[:, :k] * a
        self.expected = torch.from_numpy(whole @ b).cuda()

    def operands(self) -> tuple[Any, Any, Any]:
        return self.a, self.b, self.aq

    def check(self, c: Any, what: str = "") -> None:
        """Compare C; a difference is told by its first place and both values."""
        expected = self.expected.to(c.dtype).double()
        off = (c.double() != expected).nonzero()
        if len(off):
            i, j = off[0].tolist()
            raise AssertionError(
                f"{self.variant} {self.layout} {self.shape} {what}: C[{i},{j}] = {c[i, j].item()}, expected "
                f"{expected[i, j].item()}; {len(off)} of {c.numel()} are off"
            )


def _stored(values: np.ndarray, column_major: bool, dtype: Any) -> Any:
    x = torch.from_numpy(np.asarray(values, dtype=np.float32)).cuda()
    return x.t().contiguous().to(dtype).t() if column_major else x.to(dtype)


def has(variant: str, layout: str, out: str = "f16", tile_k: int | None = None) -> bool:
    """Tell whether the caches have such a kernel."""
    try:
        choose_kernel(Wanted(variant, (layout,), out, tile_k), (64, 64, 128), [find_arch("sm_90a")], False)
    except KernelNotFound:
        return False
    return True


def raises(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    """Make a call that must be refused, and then a good one: the context must be usable."""
    try:
        call()
    except kind as error:
        assert text in str(error), f"needed {text!r} in {error}"
    else:
        raise AssertionError(f"not refused: needed {kind.__name__} with {text!r}")
    good = Case("fp8", "rcr", (16, 64, 384))
    good.check(gemmill.gemm_aquant(*good.operands()), "after an error")


def test_every_variant_and_layout() -> None:
    tried = 0
    for variant in VARIANTS:
        for layout in LAYOUTS:
            for shape in SHAPES:
                case = Case(variant, layout, shape)
                for _ in range(2):  # planned, then from the plan
                    case.check(gemmill.gemm_aquant(*case.operands()))
                tried += 1
    assert tried == len(VARIANTS) * len(LAYOUTS) * len(SHAPES)


def test_outputs() -> None:
    case = Case("fp8", "rcr", (129, 256, 1024))
    for out, dtype in zip(OUTPUTS, (torch.float16, torch.bfloat16), strict=True):
        if has("fp8", "rcr", out):
            c = gemmill.gemm_aquant(*case.operands(), out_dtype=dtype)
            assert c.dtype == dtype
            case.check(c, out)


def test_preshuffled_scales() -> None:
    for layout in ("rcr", "rrr", "crr"):
        case = Case("fp8", layout, (64, 256, 512))
        scale = gemmill.preshuffle_scale(case.aq, 128)
        case.check(gemmill.gemm_aquant(case.a, case.b, scale), "preshuffled")
        # A kernel that wants them shuffled shuffles plain ones by itself.
        wanted = Wanted("fp8", (layout,), "f16", 128)
        kernel = choose_kernel(wanted, (64, 256, 512), [find_arch("sm_90a")], False)
        case.check(gemmill.gemm_aquant(*case.operands(), kernel=kernel), "shuffled on the way")


def test_strided_views() -> None:
    case = Case("fp8", "rcr", (64, 256, 512))
    wide_a = torch.zeros((64, 528), dtype=torch.uint8, device="cuda")
    wide_a[:, 16:] = case.a.view(torch.uint8)
    a = wide_a[:, 16:].view(torch.float8_e4m3fn)
    odd = torch.zeros((64, 515), dtype=torch.uint8, device="cuda")
    odd[:, 3:] = case.a.view(torch.uint8)
    for operand in (a, odd[:, 3:].view(torch.float8_e4m3fn)):
        whole = torch.full((64, 300), 7, dtype=torch.float16, device="cuda")
        out = whole[:, 9:265]
        assert gemmill.gemm_aquant(operand, case.b, case.aq, out) is out
        case.check(out, "strided")
        assert bool((whole[:, :9] == 7).all() and (whole[:, 265:] == 7).all())
    scales = torch.repeat_interleave(case.aq, 2, dim=1)[:, ::2]
    case.check(gemmill.gemm_aquant(case.a, case.b, scales), "scales with gaps")
    case.check(gemmill.gemm_aquant(case.a, case.b, case.aq.t().contiguous().t()), "column-major scales")


def test_tensors_that_are_others_at_the_same_address() -> None:
    """A repeated call looks at B's address first: all else must be told apart, and what is wrong still be refused."""
    case = Case("fp8", "rcr", (64, 256, 512))
    memory = torch.empty(256 * 512, dtype=torch.uint8, device="cuda")
    views = (memory.view(256, 512).t(), memory.view(512, 256))
    for _ in range(3):
        for view in views:
            view.copy_(case.b.view(torch.uint8))
            b = view.view(case.b.dtype)
            case.check(gemmill.gemm_aquant(case.a, b, case.aq), "C allocated")
            whole = torch.full((64, 300), 7, dtype=torch.float16, device="cuda")
            for out in (whole[:, 8:264], torch.empty((64, 256), dtype=torch.float16, device="cuda")):
                assert gemmill.gemm_aquant(case.a, b, case.aq, out) is out
                case.check(out, "out given")
            assert bool((whole[:, :8] == 7).all() and (whole[:, 264:] == 7).all())
            few = gemmill.gemm_aquant(case.a[:9], b, case.aq[:9])
            assert torch.equal(few.double(), case.expected[:9])
            with torch.inference_mode():
                case.check(gemmill.gemm_aquant(case.a.clone(), b, case.aq), "in inference mode")
            e5m2 = case.a.view(torch.float8_e5m2)
            for text, call in (
                ("A float8_e5m2, B float8_e4m3fn", lambda b=b, a=e5m2: gemmill.gemm_aquant(a, b, case.aq)),
                ("A on cpu", lambda b=b: gemmill.gemm_aquant(case.a.cpu(), b, case.aq)),
                ("AQ on cpu", lambda b=b: gemmill.gemm_aquant(case.a, b, case.aq.cpu())),
                ("one scale", lambda b=b: gemmill.gemm_aquant(case.a, b, case.aq[:, :1])),
                ("out overlaps B", lambda b=b: gemmill.gemm_aquant(case.a, b, case.aq, _as_out(memory))),
            ):
                raises(ArgumentError, text, call)


def _as_out(memory: Any) -> Any:
    return memory.view(torch.float16)[: 64 * 256].view(64, 256)


def test_the_current_stream() -> None:
    """A producer that comes late on a stream of its own is waited for, since the product is on that stream too."""
    case = Case("fp8", "rcr", (64, 256, 512))
    gemmill.gemm_aquant(*case.operands())
    late = torch.zeros_like(case.a.view(torch.uint8))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(case.a.view(torch.uint8))
        c = gemmill.gemm_aquant(late.view(torch.float8_e4m3fn), case.b, case.aq)
        assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    case.check(c, "behind a late producer")


def test_a_thread_that_has_no_context_yet() -> None:
    case = Case("fp8", "rcr", (16, 64, 384))
    out = torch.full((16, 64), float("nan"), dtype=torch.float16, device="cuda")
    gemmill.gemm_aquant(*case.operands(), out)  # the plan is there, so the thread asks torch for nothing but its stream
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        c = pool.submit(gemmill.gemm_aquant, *case.operands(), out).result()
    case.check(c, "from another thread")


def test_a_graph_is_captured_and_replayed_with_new_inputs() -> None:
    first, second = (Case("fp8", "rcr", (16, 256, 512), seed) for seed in (1, 2))
    a, b, aq = (x.clone() for x in (first.a.view(torch.uint8), first.b.view(torch.uint8), first.aq))
    operands = (a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn), aq)
    gemmill.gemm_aquant(*operands)  # loads the kernel, which a capture can't
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = gemmill.gemm_aquant(*operands)
    for case in (first, second, first):
        a.copy_(case.a.view(torch.uint8)), b.copy_(case.b.view(torch.uint8)), aq.copy_(case.aq)
        c.fill_(float("nan"))
        graph.replay()
        case.check(c, "replayed")


def test_the_operator() -> None:
    import_module("gemmill.torch")
    operator = torch.ops.gemmill.gemm_aquant
    case = Case("fp8", "rcr", (64, 256, 512))
    case.check(operator(*case.operands()), "operator")
    int4 = Case("fp8i4f32", "ccr", (64, 256, 512))
    int4.check(operator(int4.a.data, int4.b, int4.aq, int4_order="F"), "operator, int4")
    scale = gemmill.preshuffle_scale(case.aq, 128).data
    case.check(operator(case.a, case.b, scale, tile_k=128), "operator, preshuffled")
    # test_schema compares the operands before and after, which torch can't do for its fp8 types.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, case.operands(), {}, test_utils=checks)


def test_torch_compile() -> None:
    import_module("gemmill.torch")
    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(
            lambda a, b, aq: torch.ops.gemmill.gemm_aquant(a, b, aq) * 2, backend=backend, fullgraph=True
        )
        case = Case("fp8", "rcr", (64, 256, 512))
        case.check(compiled(*case.operands()) / 2, f"compiled by {backend}")


class ByDlpack:
    """An array that has ``__dlpack__`` and nothing else."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class ByInterface:
    """An array that has ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, x: Any, stream: int | None = None) -> None:
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "version": 3, "stream": stream}


def _bytes(x: Any) -> Any:
    return gemmill.Fp8Matrix(ByInterface(x.view(torch.uint8)), str(x.dtype))


def test_arrays_by_dlpack() -> None:
    for variant, layout in (("fp8", "rcr"), ("bf8", "rrr"), ("fp8i4f32", "rcr")):
        case = Case(variant, layout, (64, 256, 512))
        c = torch.empty((64, 256), dtype=torch.float16, device="cuda")
        int4 = isinstance(case.a, gemmill.Int4Matrix)
        a = gemmill.Int4Matrix(ByDlpack(case.a.data), case.a.shape, case.a.order) if int4 else ByDlpack(case.a)
        for stream in (None, torch.cuda.Stream().cuda_stream):
            c.fill_(float("nan"))
            torch.cuda.synchronize()
            gemmill.gemm_aquant(a, ByDlpack(case.b), ByDlpack(case.aq), ByDlpack(c), stream=stream)
            torch.cuda.synchronize()
            case.check(c, "by DLPack")


def test_arrays_by_the_interface() -> None:
    case = Case("fp8", "rcr", (64, 256, 512))
    c = torch.full((64, 256), float("nan"), dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    gemmill.gemm_aquant(_bytes(case.a), _bytes(case.b), ByInterface(case.aq), ByInterface(c))
    torch.cuda.synchronize()
    case.check(c, "by the interface")


def test_a_named_stream_is_waited_for() -> None:
    """A is written late on a stream that its interface names; the product goes on another."""
    case = Case("fp8", "rcr", (64, 256, 512))
    late = torch.zeros_like(case.a.view(torch.uint8))
    c = torch.full((64, 256), float("nan"), dtype=torch.float16, device="cuda")
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(50_000_000)
        late.copy_(case.a.view(torch.uint8))
    a = gemmill.Fp8Matrix(ByInterface(late, producer.cuda_stream), "float8_e4m3fn")
    gemmill.gemm_aquant(a, _bytes(case.b), ByInterface(case.aq), ByInterface(c), stream=consumer.cuda_stream)
    consumer.synchronize()
    case.check(c, "after a named stream")


def test_cupy_arrays() -> None:
    """On CuPy's current stream, which its interface names."""
    case = Case("fp8", "rcr", (64, 256, 512))
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed: nothing to try")
    else:
        a, b = (cupy.from_dlpack(x.view(torch.uint8)) for x in (case.a, case.b))
        aq, c = cupy.from_dlpack(case.aq), cupy.zeros((64, 256), cupy.float16)
        stream = cupy.cuda.Stream(non_blocking=True)
        torch.cuda.synchronize()
        with stream:
            gemmill.gemm_aquant(gemmill.Fp8Matrix(a, "float8_e4m3fn"), gemmill.Fp8Matrix(b, "float8_e4m3fn"), aq, c)
        stream.synchronize()
        case.check(torch.from_dlpack(c), "CuPy")


def test_numpy_arrays_go_to_the_device_and_back() -> None:
    for variant, layout in (("fp8", "rcr"), ("fp8", "ccr"), ("bf8i4f32", "crr")):
        case = Case(variant, layout, (64, 256, 512))
        a = case.a
        if isinstance(a, gemmill.Int4Matrix):
            a = gemmill.Int4Matrix(a.data.cpu().numpy(), a.shape, a.order)
        else:
            a = _numpy(a)
        c = gemmill.gemm_aquant(a, _numpy(case.b), _numpy(case.aq), arch="sm_90a")
        case.check(torch.from_numpy(c).cuda(), "numpy")


def _numpy(x: Any) -> np.ndarray:
    import ml_dtypes

    name = str(x.dtype).removeprefix("torch.")
    x = x.cpu()
    return x.numpy() if name == "float32" else x.view(torch.uint8).numpy().view(getattr(ml_dtypes, name))


def test_nothing_to_multiply() -> None:
    for m, n, k in ((3, 4, 0), (0, 4, 128), (3, 0, 128)):
        a = torch.zeros((m, k), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
        b = torch.zeros((n, k), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn).t()
        c = gemmill.gemm_aquant(a, b, torch.zeros((m, groups(k)), device="cuda"))
        assert c.shape == (m, n) and not c.any()


def test_bad_input_is_refused_and_the_context_stays_usable() -> None:
    case = Case("fp8", "rcr", (16, 64, 384))
    a, b, aq = case.operands()
    gemmill.gemm_aquant(a, b, aq)  # a plan is there: what follows must be found all the same
    out = torch.empty((16, 64), dtype=torch.float16, device="cuda")
    gemmill.gemm_aquant(a, b, aq, out)

    def call(*operands: Any, **options: Any) -> Callable[[], Any]:
        return lambda: gemmill.gemm_aquant(*operands, **options)

    raises(ArgumentError, "AQ on cpu", call(a, b, aq.cpu()))
    raises(ArgumentError, "AQ on cpu", call(a, b, aq.cpu().pin_memory()))
    raises(ArgumentError, "A is a numpy.ndarray", call(_numpy(a), b, aq))
    raises(ArgumentError, "no variant takes A float32", call(a.float(), b, aq))
    raises(ArgumentError, "no variant takes A float8_e5m2", call(a.view(torch.uint8).view(torch.float8_e5m2), b, aq))
    raises(ArgumentError, "FNUZ", call(*(x.view(torch.uint8).view(torch.float8_e4m3fnuz) for x in (a, b)), aq))
    raises(ArgumentError, "Fp8Matrix", call(a.view(torch.uint8), b, aq))
    raises(
        ArgumentError,
        "neither row- nor column-major",
        call(torch.cat([a.view(torch.uint8)] * 2, 1)[:, ::2].view(a.dtype), b, aq),
    )
    raises(ArgumentError, "AQ has shape", call(a, b, aq[:, :2]))
    raises(ArgumentError, "out overlaps A", call(a, b, aq, a.view(torch.uint8).view(torch.float16)[:, :64]))
    raises(ArgumentError, "out is not row-major", call(a, b, aq, out.t().contiguous().t()))
    raises(ArgumentError, "output dtype", call(a, b, aq, out.double()))
    raises(ArgumentError, "stream", call(a, b, aq, stream=0))
    raises(ArgumentError, "runs sm_90a", call(a, b, aq, arch="gfx942"))
    raises(ArgumentError, "out is None", call(ByDlpack(a), ByDlpack(b), ByDlpack(aq)))
    host = np.zeros((16, 3), np.float32)
    lie = {"shape": host.shape, "typestr": "<f4", "data": (host.ctypes.data, False), "version": 3, "stream": None}
    liar = type("Liar", (), {"__cuda_array_interface__": lie})()
    raises(ArgumentError, "AQ is not device memory", call(_bytes(a), _bytes(b), liar, ByInterface(out)))


def test_a_tensor_on_another_device_is_refused() -> None:
    if torch.cuda.device_count() < 2:
        print("one device: nothing to try")
        return
    case = Case("fp8", "rcr", (16, 64, 384))
    a, b, aq = case.operands()
    gemmill.gemm_aquant(a, b, aq)
    raises(ArgumentError, "A on cuda:1, B on cuda:0", lambda: gemmill.gemm_aquant(a.to("cuda:1"), b, aq))
    moved = [x.view(torch.uint8).to("cuda:1").view(x.dtype) for x in (a, b)]
    c = gemmill.gemm_aquant(*moved, aq.to("cuda:1"))
    assert c.device.index == 1 and torch.cuda.current_device() == 0
    case.check(c.to("cuda:0"), "on the second device")


def test_out_of_memory() -> None:
    """C of more than the device has: torch says so; then numpy arrays whose copies do not fit: the kernel says so."""
    total = torch.cuda.get_device_properties(0).total_memory
    rows = total // (2 * 65536) + 1024
    a = torch.zeros((rows, 128), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    b = torch.zeros((65536, 128), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn).t()
    aq = torch.ones((rows, 1), device="cuda")
    raises(torch.OutOfMemoryError, "out of memory", lambda: gemmill.gemm_aquant(a, b, aq))
    hog = [torch.empty(torch.cuda.mem_get_info()[0] - (600 << 20), dtype=torch.uint8, device="cuda")]
    import ml_dtypes

    x = np.zeros((1, 2 << 29), np.uint8)[:, : 1 << 29].view(ml_dtypes.float8_e4m3fn)
    w = np.zeros((2, 1 << 29), np.uint8).view(ml_dtypes.float8_e4m3fn).T
    scales = np.ones((1, (1 << 29) // 128), np.float32)
    try:
        gemmill.gemm_aquant(x, w, scales, arch="sm_90a")
    except DeviceError as error:
        assert "out of device memory" in str(error), error
    else:
        raise AssertionError("1.5 GB fitted into 0.6")
    hog.clear()
    torch.cuda.empty_cache()
    good = Case("fp8", "rcr", (16, 64, 384))
    good.check(gemmill.gemm_aquant(*good.operands()), "after running out of memory")


def test_the_choice_is_what_the_command_says() -> None:
    forget()
    for shape in ((1, 4096, 4096), (64, 4096, 4096), (2048, 2048, 2048), (100, 999, 777)):
        wanted = Wanted("fp8", ("rcr",))
        kernel = choose_kernel(wanted, shape, [find_arch("sm_90a")], False)
        text = explain_choice(wanted, shape, "sm_90a")
        (line,) = (line for line in text.splitlines() if line.endswith("chosen"))
        assert kernel.name in line, text


def main(parts: list[str]) -> int:
    """Run the tests without pytest; return the number that failed."""
    import time
    import traceback

    if REASON is not None:
        print("skipped:", REASON)
        return 0
    failed = passed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not parts or any(part in name for part in parts)):
            begin = time.perf_counter()
            try:
                test()
                passed += 1
                print(f"passed {time.perf_counter() - begin:6.2f} s {name}", flush=True)
            except Exception:
                failed += 1
                print(
                    f"FAILED {time.perf_counter() - begin:6.2f} s {name}\n{traceback.format_exc(limit=-3)}", flush=True
                )
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
