"""Which kernel a product gets on a GPU: the selection table, the estimate, what a cache lacks, and the words for it."""

from __future__ import annotations

import json

import gemmill
import pytest
from fake_device import DEVICES
from gemmill import choice, cuda, selection
from gemmill.arch import find_arch
from gemmill.cache import Cache
from gemmill.choice import Wanted, choose_kernel, explain_choice
from gemmill.cli import main
from gemmill.errors import CorruptObject, KernelNotFound
from gemmill.selection import Table, estimate, load_table, rank, read_table, schedule_of
from generators import check, problem
from support import REPOSITORY, add_fake, fake_config

from kernels.catalogue import load_catalogue

SMALL, MIDDLE, LARGE = (4, 8, 128), (64, 64, 128), (128, 128, 128)


def config(tile, variant="fp8", layout="rcr", family="decode", out="f16"):
    return fake_config(variant, layout, family, "sm_90a", out, tile)


def schedule(tile, family="decode"):
    return schedule_of(config(tile, family=family).name)


def table(*rows: tuple) -> Table:
    """Return a table of rows (variant, layout, m, n, k, {tile: µs})."""
    return read_table(
        json.dumps(
            {
                "schema": 1,
                "arch": "sm_90a",
                "measured": {"date": "2026-01-01", "card": "a card"},
                "rows": [
                    {
                        "variant": v,
                        "layout": lay,
                        "m": m,
                        "n": n,
                        "k": k,
                        "us": {schedule(t): us for t, us in times.items()},
                    }
                    for v, lay, m, n, k, times in rows
                ],
            }
        ),
        "test",
    )


@pytest.fixture
def gpu(monkeypatch):
    """Let this machine have a Hopper GPU, and a table of two classes."""
    monkeypatch.setattr(cuda, "devices", lambda library="": DEVICES)
    cuda.arch_of_device.cache_clear()
    found = table(
        ("fp8", "rcr", 16, 4096, 4096, {SMALL: 7.0, MIDDLE: 8.0}),
        ("fp8", "rcr", 64, 4096, 4096, {MIDDLE: 8.5, SMALL: 12.0}),
        ("fp8i4", "rcr", 16, 4096, 4096, {MIDDLE: 3.0}),
    )
    monkeypatch.setattr(selection, "load_table", lambda arch: found if arch == "sm_90a" else None)
    yield
    cuda.arch_of_device.cache_clear()


def chosen(shape, **options):
    wanted = Wanted(options.pop("variant", "fp8"), (options.pop("layout", "rcr"),), **options)
    return choose_kernel(wanted, shape, [find_arch("sm_90a")], False)


def fill(cache: Cache, *tiles, **options) -> None:
    for tile in tiles:
        add_fake(cache.root, config(tile, **options), "TAKES_STREAM")


def test_the_fastest_of_the_nearest_row_is_taken(found_cache, gpu):
    fill(found_cache, SMALL, MIDDLE, LARGE)
    for m, tile in ((1, SMALL), (16, SMALL), (17, MIDDLE), (40, MIDDLE), (64, MIDDLE), (100, MIDDLE)):
        assert chosen((m, 4096, 4096)).config["tile"] == list(tile), m
    assert chosen((16, 2048, 8192)).config["tile"] == list(SMALL)


def test_at_equal_distance_the_larger_m_decides(found_cache, gpu):
    fill(found_cache, SMALL, MIDDLE)
    assert rank("sm_90a", "fp8", "rcr", (32, 4096, 4096)).row.shape[0] == 64


def test_what_the_cache_lacks_is_passed_over(found_cache, gpu):
    fill(found_cache, MIDDLE, LARGE)
    assert chosen((16, 4096, 4096)).config["tile"] == list(MIDDLE)
    choice.forget()
    for path in found_cache.root.glob("index/*/*_64x64x128_*"):
        path.unlink()
    assert chosen((16, 4096, 4096)).config["tile"] == list(LARGE)  # not measured, but there


def test_out_of_reach_the_estimate_decides(found_cache, gpu):
    fill(found_cache, (16, 64, 128), MIDDLE, LARGE)
    assert rank("sm_90a", "fp8", "rcr", (8192, 8192, 8192)).row is None
    assert chosen((8192, 8192, 8192)).config["tile"] == list(LARGE)
    assert chosen((2, 4096, 32 * 4096)).config["tile"] == [16, 64, 128]
    assert chosen((2, 4096, 4096)).config["tile"] == list(MIDDLE)  # measured beats not measured


def test_a_variant_borrows_the_rows_of_its_like(gpu):
    assert rank("sm_90a", "bf8", "rcr", (16, 4096, 4096)).row.variant == "fp8"
    assert rank("sm_90a", "bf8i4f32", "rcr", (16, 4096, 4096)).row.variant == "fp8i4"
    assert rank("sm_90a", "bf8i4", "rcr", (64, 4096, 4096)).row is None
    assert rank("sm_90a", "fp8", "rrr", (16, 4096, 4096)).row is None


def test_its_own_row_goes_before_that_of_its_like():
    both = table(("bf8", "rcr", 16, 64, 128, {SMALL: 1.0}), ("fp8", "rcr", 16, 64, 128, {MIDDLE: 1.0}))
    assert both.nearest("fp8", "rcr", (16, 64, 128)).variant == "fp8"
    assert both.nearest("bf8", "rcr", (16, 64, 128)).variant == "bf8"


def test_all_places_compete_and_of_one_kernel_the_first_wins(found_cache, gpu, tmp_path, monkeypatch):
    fill(found_cache, MIDDLE)
    second = Cache(tmp_path / "second")
    fill(second, SMALL)
    add_fake(second.root, config(MIDDLE), "TAKES_STREAM", inputs={"more": 1})
    monkeypatch.setenv("GEMMILL_CACHE", f"{found_cache.root}:{second.root}")
    assert chosen((16, 4096, 4096)).path.is_relative_to(second.root)
    assert chosen((64, 4096, 4096)).path.is_relative_to(found_cache.root)


def test_refused_kernels_are_looked_at_once(found_cache, gpu, monkeypatch):
    fill(found_cache, MIDDLE)
    add_fake(found_cache.root, config(SMALL), "TAKES_STREAM", outcome="failed", reason="a reason")
    assert chosen((16, 4096, 4096)).config["tile"] == list(MIDDLE)
    monkeypatch.setattr(choice, "examine", lambda *_: pytest.fail("looked again"))
    assert chosen((15, 4096, 4096)).config["tile"] == list(MIDDLE)


def test_a_miss_lists_what_was_refused_and_is_not_remembered(found_cache, gpu):
    add_fake(found_cache.root, config(SMALL), "TAKES_STREAM", outcome="failed", reason="a reason")
    with pytest.raises(KernelNotFound, match="its selftest failed: a reason"):
        chosen((16, 4096, 4096))
    fill(found_cache, MIDDLE)
    assert chosen((16, 4096, 4096)).config["tile"] == list(MIDDLE)


def test_broken_index_entries_are_left_out(found_cache, gpu):
    fill(found_cache, SMALL, MIDDLE)
    (path,) = found_cache.root.glob("index/*/*_4x8x128_*")
    entry = json.loads(path.read_text())
    entry["config"]["tile"] = "4x8x128"
    path.write_text(json.dumps(entry))
    assert chosen((16, 4096, 4096)).config["tile"] == list(MIDDLE)


def test_outputs_and_preshuffled_scales_have_their_own(found_cache, gpu):
    fill(found_cache, SMALL)
    fill(found_cache, SMALL, out="bf16")
    fill(found_cache, (4, 8, 256), MIDDLE, family="preshufflequant")
    assert chosen((16, 4096, 4096), out="bf16").config["out"] == "bf16"
    assert chosen((16, 4096, 4096), tile_k=256).config["tile"] == [4, 8, 256]
    assert not chosen((16, 4096, 4096)).preshuffle
    with pytest.raises(KernelNotFound, match="_outf32"):
        chosen((16, 4096, 4096), out="f32")


def test_the_shape_of_a_call_decides(found_cache, gpu):
    """Through gemm_aquant: numpy arrays of two heights get two kernels."""
    fill(found_cache, SMALL, MIDDLE)
    for m in (2, 60):
        p = problem("fp8", m, 1024, 1024)
        check(gemmill.gemm_aquant(p.a, p.b, p.aq, arch="sm_90a"), p)
    assert {kernel.config["tile"][0] for kernel in choice._open.values()} == {4, 64}


def test_the_estimate_prefers_what_it_should():
    tiles = [(16, 64, 128), (64, 64, 128), (128, 128, 128), (128, 256, 128)]

    def best(*shape):
        return min(tiles, key=lambda tile: estimate(tile, shape))

    assert best(1, 4096, 4096) == (16, 64, 128)
    assert best(64, 4096, 4096) == (64, 64, 128)
    assert best(4096, 4096, 4096) == (128, 256, 128)
    assert best(4096, 4096, 1) == (128, 256, 128)


# ---- Tables ----------------------------------------------------------------------------------------------


def test_the_tables_that_ship_name_kernels_of_the_catalogue():
    found = sorted(path.stem for path in (REPOSITORY / "runtime" / "tables").glob("*.json"))
    assert found
    for arch in found:
        shipped = load_table(arch)
        assert shipped.arch == arch and shipped.measured["date"] and shipped.measured["card"]
        names = {c.name for c in load_catalogue().configs(arch)}
        for row in shipped.rows:
            for name in row.times:
                assert f"gemm_aquant_{row.variant}_{row.layout}_{name}" in names, f"{row}: {name} is in no catalogue"
            assert list(row.times.values()) == sorted(row.times.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSONDecodeError"),
        ('{"schema": 2}', "schema 2: this gemmill reads 1"),
        ('{"schema": 1, "arch": "x", "measured": {}}', "KeyError: 'rows'"),
        ('{"schema": 1, "arch": "x", "measured": {}, "rows": [{"variant": "fp8"}]}', "KeyError: 'm'"),
        (
            '{"schema": 1, "arch": "x", "measured": {},'
            ' "rows": [{"variant": "fp8", "layout": "rcr", "m": 1, "n": 1, "k": 1, "us": {}}]}',
            "a row needs a shape and times above 0",
        ),
    ],
)
def test_a_broken_table_is_named(text, reason):
    with pytest.raises(CorruptObject, match=f"that file is no selection table: .*{reason}"):
        read_table(text, "that file")


# ---- explain-choice --------------------------------------------------------------------------------------


def test_explain_names_the_row_the_order_and_what_is_missing(found_cache, gpu):
    fill(found_cache, MIDDLE, LARGE)
    text = explain_choice(Wanted("fp8", ("rcr",)), (16, 4096, 4096), "sm_90a")
    lines = text.splitlines()
    assert lines[0] == "sm_90a, fp8, rcr, f16 output: M, N, K = 16, 4096, 4096"
    assert "by the times at M, N, K = 16, 4096, 4096 (fp8, rcr) [2026-01-01, a card]" in lines[1]
    assert lines[2].split() == ["8.0", "µs", config(MIDDLE).name, "chosen"]
    assert lines[3].split() == ["estimate", "6.4", config(LARGE).name, "usable"]
    assert lines[4].split()[:3] == ["7.0", "µs", config(SMALL).name]
    assert f"in no cache: ./mill 'selftest:sm_90a/{config(SMALL).name}'" in lines[4]


def test_explain_says_what_was_refused_and_that_nothing_was_measured(found_cache, gpu):
    add_fake(found_cache.root, config(SMALL, layout="ccr"), outcome="failed", reason="a reason")
    text = explain_choice(Wanted("fp8", ("ccr",), "f16"), (16, 4096, 4096), "sm_90a")
    assert "nothing was measured near this shape: by the estimate" in text
    assert "refused: its selftest failed: a reason" in text
    assert text.endswith("no usable kernel; build it with ./mill 'selftest:sm_90a/gemm_aquant_fp8_ccr_*'")


def test_explain_agrees_with_the_choice(found_cache, gpu):
    fill(found_cache, SMALL, MIDDLE, LARGE)
    for shape in ((1, 4096, 4096), (64, 4096, 4096), (300, 100, 100), (9999, 9999, 9999)):
        text = explain_choice(Wanted("fp8", ("rcr",)), shape, "sm_90a")
        (line,) = (line for line in text.splitlines() if line.endswith("chosen"))
        assert chosen(shape).name in line


def test_the_command(found_cache, gpu, capsys):
    fill(found_cache, SMALL)
    assert main(["explain-choice", "16", "4096", "4096"]) == 0
    assert f"{config(SMALL).name}  chosen" in capsys.readouterr().out
    assert main(["explain-choice", "16", "64", "128", "--arch", "generic"]) == 0
    assert "on CPUs the first on the search path is taken" in capsys.readouterr().out
    for wrong in ("0", "-3", "x", "1.5"):
        with pytest.raises(SystemExit):
            main(["explain-choice", wrong, "64", "128"])
        assert "is no integer above 0" in capsys.readouterr().err


def test_the_command_without_a_device(monkeypatch, capsys):
    def none(library=""):
        raise cuda.NoDriver("libcuda.so.1 cannot be opened")

    monkeypatch.setattr(cuda, "devices", none)
    cuda.arch_of_device.cache_clear()
    assert main(["explain-choice", "16", "4096", "4096"]) == 2
    assert "no NVIDIA driver, libcuda.so.1 cannot be opened" in capsys.readouterr().err
    assert main(["explain-choice", "16", "4096", "4096", "--arch", "sm_90a"]) == 0
    assert "in no cache" in capsys.readouterr().out
