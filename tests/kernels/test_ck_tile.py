"""Provider ck_tile before anything is compiled: which headers are taken, what they are read for, what is refused.

The headers here are our own miniatures: as much of Composable Kernel's as is read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from gemmill.cache import Cache, CacheObject
from gemmill.errors import CorruptObjectWarning, KernelNotFound, UnsupportedError
from gemmill.loader import load

from kernels import ck_headers, ck_instance
from kernels.arguments import UsageError, parse
from kernels.backends import ck_tile, find_backend
from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.ck_headers import Headers, Parameter
from kernels.config import KernelConfig
from kernels.describe import describe_config
from kernels.graph import Graph
from kernels.paths import CHECKOUT, Paths
from kernels.store import Store

QUANT = "ops/gemm_quant"
ONLY_ROW_A = "static_assert(std::is_same_v<ALayout, tensor_layout::gemm::RowMajor>);"
ONLY_ROW_AQ = "static_assert(std::is_same_v<AQLayout, ck_tile::tensor_layout::gemm::RowMajor>);"
BARRIER = "block_sync_lds();"

MINIATURE = {
    f"{QUANT}.hpp": "",
    f"{QUANT}/kernel/gemm_quant_kernel.hpp": """
        template <typename TilePartitioner_, typename GemmPipeline_, typename EpiloguePipeline_, QuantType QuantType_>
        struct QuantGemmKernel {};""",
    f"{QUANT}/pipeline/gemm_quant_pipeline_problem.hpp": f"""
        template <typename ADataType_, typename AQDataType_, typename BDataType_, typename CDataType_,
                  typename BlockGemmShape_, typename Traits_, typename QuantGroupSize_, bool TransposeC_,
                  typename ComputeDataType_ = BDataType_,  // of both
                  Scheduler Scheduler_ = Scheduler::Intrawave, bool HasHotLoop_ = true, TailNumber TailNum_ = Full>
        using GemmAQuantPipelineProblem = Base<ADataType_>;
        {ONLY_ROW_A} {ONLY_ROW_AQ}""",
    f"{QUANT}/pipeline/tile_gemm_quant_traits.hpp": """
        template <bool kPadM_, bool kPadN_, bool kPadK_, bool PreshuffleQuant_, bool PreshuffleB_, typename ALayout_,
                  typename BLayout_, typename CLayout_, QuantType QuantType_, typename AQLayout_ = ALayout_>
        struct TileGemmQuantTraits {};""",
    f"{QUANT}/pipeline/gemm_aquant_pipeline_ag_bg_cr_mem.hpp": """
        struct AQuantGemmPipelineAgBgCrMem {};
        struct PipelineImpl<GemmPipelineScheduler::Interwave> {
            run() {
                Policy::template MakeShuffledTile<Problem>();
                if constexpr(TailNum == TailNumber::Even) { /* block_sync_lds(); */ Base::LocalPrefill(a); }
            }
        };""",
    f"{QUANT}/pipeline/gemm_aquant_pipeline_ag_bg_cr_v3.hpp": """
        struct AQuantGemmPipelineAgBgCrCompV3 { bool PreshuffleQuant; };
        struct PipelineImpl<GemmPipelineScheduler::Intrawave> { run() { Policy::template MakeShuffledTile<P>(); } };""",
    f"{QUANT}/block/block_universal_gemm_as_aquant_bs_cr.hpp": """
        struct BlockGemmImpl<GemmPipelineScheduler::Intrawave, Traits> {};""",
    "ops/epilogue/cshuffle_epilogue.hpp": """
        template <typename AsDataType_, typename BsDataType_, typename DsDataType_, typename AccDataType_,
                  typename ODataType_, typename DsLayout_, typename ELayout_, typename CDElementwise_, index_t kM_,
                  index_t kN_, index_t MWave_, index_t NWave_, index_t MPerXdl_, index_t NPerXdl_, index_t KPerXdl_,
                  bool isCTransposed_, memory_operation_enum MemoryOperation_, index_t kNumWaveGroups_ = 1>
        struct CShuffleEpilogueProblem {};""",
    "host/permute_pk_int4.hpp": "void permute_vectors_i4x4_b();",
}


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headers:
    """Return a miniature of Composable Kernel as it was packaged in November 2025, named by CK_INCLUDE."""
    for path, text in MINIATURE.items():
        file = tmp_path / "include" / "ck_tile" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv(ck_headers.VARIABLE, str(tmp_path / "include"))
    return ck_headers.find_headers()


def edit(headers: Headers, path: str, old: str, new: str) -> None:
    file = headers.root / "ck_tile" / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def kernel(family: str = "decode", layout: str = "rcr", variant: str = "fp8", arch: str = "gfx942") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


DECODE, SHUFFLED = kernel(), kernel("preshufflequant")


# ---- Finding headers --------------------------------------------------------------------------------------


def test_the_python_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / ck_headers.PACKAGE / "3rdparty/composable_kernel/include"
    (include / "ck_tile/ops").mkdir(parents=True)
    (include / "ck_tile/ops/gemm_quant.hpp").touch()
    monkeypatch.delenv(ck_headers.VARIABLE, raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "no rocm"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = ck_headers.find_headers()
    assert (found.root, found.origin) == (include, "amd-aiter")


def test_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ck_headers.VARIABLE, str(tmp_path))
    with pytest.raises(UnsupportedError, match=re.escape(f"{tmp_path} (CK_INCLUDE): no ck_tile/ops/gemm_quant.hpp")):
        ck_headers.find_headers()
    (tmp_path / "ck_tile").mkdir()
    (tmp_path / "ck_tile/core.hpp").touch()
    with pytest.raises(UnsupportedError, match=r"too old.*pip install --no-deps amd-aiter"):
        ck_headers.find_headers()


def test_the_digest_is_of_names_and_contents(headers: Headers) -> None:
    before = headers.digest
    assert ck_headers.find_headers().digest == before
    edit(headers, f"{QUANT}/kernel/gemm_quant_kernel.hpp", "{}", "{ }")
    assert ck_headers.find_headers().digest != before


# ---- Template parameters ----------------------------------------------------------------------------------


def test_parameters_are_read_by_name(headers: Headers) -> None:
    found = headers.parameters("GemmAQuantPipelineProblem", f"{QUANT}/pipeline/gemm_quant_pipeline_problem.hpp")
    assert found[0] == Parameter("ADataType", None)
    assert found[7:9] == [Parameter("TransposeC", None), Parameter("ComputeDataType", "BDataType_")]
    assert [one.name for one in found[9:]] == ["Scheduler", "HasHotLoop", "TailNum"]


def test_arguments_follow_the_headers(headers: Headers) -> None:
    path = f"{QUANT}/pipeline/tile_gemm_quant_traits.hpp"
    known = {"kPadM": "true", "BQLayout": "Row", "Late": "7"}
    file = headers.root / "ck_tile" / path
    file.write_text(
        "template <bool kPadM_, int New_ = 3 * (4, 5), typename BQLayout_ = X_, class T_ = BQLayout_, int Late_ = 1,"
        " int Last_ = 9>\nstruct TileGemmQuantTraits\n{};"
    )
    assert headers.arguments("TileGemmQuantTraits", path, known) == "TileGemmQuantTraits<true, 3 * (4, 5), Row, Row, 7>"
    file.write_text("template <bool kPadM_, int New_> struct TileGemmQuantTraits {};")
    with pytest.raises(UnsupportedError, match=r"TileGemmQuantTraits.*takes New, which gemmill does not know"):
        headers.arguments("TileGemmQuantTraits", path, known)
    file.write_text("struct TileGemmQuantTraits;")
    with pytest.raises(UnsupportedError, match=r"has no TileGemmQuantTraits"):
        headers.arguments("TileGemmQuantTraits", path, known)


def test_a_renamed_parameter_gets_the_same_argument(headers: Headers) -> None:
    problem = f"{QUANT}/pipeline/gemm_quant_pipeline_problem.hpp"
    before = ck_instance.context(DECODE, headers)["arguments"]["problem"]
    edit(headers, problem, "QuantGroupSize_", "AQuantGroupSize_")
    assert ck_instance.context(DECODE, headers)["arguments"]["problem"] == before
    assert "Traits, Group, false, B, GemmPipelineScheduler::Intrawave, kHotLoop, kTail>" in before


# ---- What is refused, before a compiler runs --------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (kernel(layout="rrr"), "reads the B of rrr by MakeShuffledTile, which it lacks"),
        (kernel(layout="crr"), "takes a row-major A only"),
        (kernel(layout="ccr"), "takes a row-major AQ only"),
        (kernel(arch="gfx90a"), "gfx90a has no FP8 matrix instruction"),
    ],
    ids=lambda x: getattr(x, "layout", ""),
)
def test_refusals(headers: Headers, config: KernelConfig, reason: str) -> None:
    assert reason in (ck_tile.why_not(config) or "")
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        ck_tile.context(config)


@pytest.mark.parametrize(
    ("config", "path", "old", "reason"),
    [
        (DECODE, "pipeline/gemm_aquant_pipeline_ag_bg_cr_mem.hpp", "struct AQuantGemm", "has no AQuantGemm"),
        (DECODE, "pipeline/gemm_aquant_pipeline_ag_bg_cr_mem.hpp", "Scheduler::Interwave", "has no Interwave loop"),
        (SHUFFLED, "pipeline/gemm_aquant_pipeline_ag_bg_cr_v3.hpp", "PreshuffleQuant", "takes no preshuffled AQ"),
    ],
)  # fmt: skip
def test_refusals_of_other_headers(headers: Headers, config: KernelConfig, path: str, old: str, reason: str) -> None:
    assert ck_instance.why_not(config, headers) is None
    edit(headers, f"{QUANT}/{path}", old, "gone")
    assert reason in (ck_instance.why_not(config, headers) or "")


def test_headers_that_can_do_more_are_let(headers: Headers) -> None:
    problem = f"{QUANT}/pipeline/gemm_quant_pipeline_problem.hpp"
    edit(headers, problem, ONLY_ROW_A, "")
    edit(headers, problem, ONLY_ROW_AQ, "auto MakeShuffledTile() {}")
    for layout in ("rcr", "rrr", "crr", "ccr"):
        assert ck_tile.why_not(kernel(layout=layout)) is None
    edit(headers, f"{QUANT}/block/block_universal_gemm_as_aquant_bs_cr.hpp", "Intrawave", "Interwave")
    assert "GemmPipelineScheduler::Interwave" in ck_tile.context(DECODE)["arguments"]["problem"]


# ---- The race ---------------------------------------------------------------------------------------------


def test_a_race_is_said_and_its_instances_left_out(headers: Headers) -> None:
    found = ck_tile.context(DECODE)
    assert found["limits"] == {"n": 8, "k": 256, "not_k": 512}
    assert [one["suffix"] for one in found["instances"]] == ["cold_odd", "hot_odd"]
    assert any("race when K is a multiple of 512" in note for note in ck_tile.notes(DECODE))
    assert not any("race" in note for note in ck_tile.notes(SHUFFLED))
    assert [one["suffix"] for one in ck_tile.context(SHUFFLED)["instances"]] == ["cold_odd", "cold_even", "hot_full"]


def test_a_barrier_ends_the_race(headers: Headers) -> None:
    edit(headers, f"{QUANT}/pipeline/gemm_aquant_pipeline_ag_bg_cr_mem.hpp", f"/* {BARRIER} */", BARRIER)
    found = ck_tile.context(DECODE)
    assert found["limits"] == {"n": 8, "k": 256}
    assert [one["suffix"] for one in found["instances"]] == ["cold_odd", "cold_even", "hot_odd", "hot_even"]
    assert not any("race" in note for note in ck_tile.notes(DECODE))


# ---- The trap of this family: what compiles, and gives zeros ---------------------------------------------


def test_an_instance_without_matrix_instruction_is_refused(
    headers: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{SHUFFLED.name}_{suffix}" for suffix in ("cold_odd", "cold_even", "hot_full")]
    monkeypatch.setattr(ck_tile, "read_kernels", lambda path: {name: {"vgprs": 8} for name in names})
    body = "{}:\n\ts_nop 0\n\tv_mfma_f32_16x16x32_fp8_fp8 a[0:3], v[0:1], v[2:3], 0\n.Lfunc_end0:\n"
    assembly = "".join(body.format(name) for name in names)
    (tmp_path / ck_tile.ASSEMBLY).write_text(assembly)
    found, _ = ck_tile.resources(SHUFFLED, "", tmp_path)
    assert found["hot_full"] == {"vgprs": 8, "matrix_instructions": 1}
    (tmp_path / ck_tile.ASSEMBLY).write_text(assembly.replace("v_mfma", "v_mov", 1))
    with pytest.raises(UnsupportedError, match="cold_odd has no matrix instruction: its results would be zeros"):
        ck_tile.resources(SHUFFLED, "", tmp_path)


# ---- The provider as an axis ------------------------------------------------------------------------------


def test_only_gfx_archs(headers: Headers) -> None:
    with pytest.raises(
        UnsupportedError, match=r"provider=ck_tile has no kernels for generic: .* gfx90a, gfx942, gfx950"
    ):
        find_backend("generic", "ck_tile")
    with pytest.raises(UsageError, match=r"unknown provider=ck_tiles \(did you mean ck_tile\?\)"):
        parse(["provider=ck_tiles"])


def test_a_run_that_can_build_nothing_says_why(headers: Headers) -> None:
    options = parse(["provider=ck_tile", "arch=gfx942", "layout=ccr"])
    with pytest.raises(
        UnsupportedError, match=r"can build none of what was asked for:\n.*row-major AQ only.*\(6 kernels\)"
    ):
        Graph(options)
    graph = Graph(parse(["provider=ck_tile", "arch=gfx942", "variant=fp8"]))
    assert [config.layout for config in graph.selected["compile"]] == ["rcr", "rcr"]
    assert graph.refused.total() == 5
    assert graph.selected["selftest"] == [] and "gfx942" in graph.selection.skipped


def test_sources_and_index_lie_apart(tmp_path: Path) -> None:
    native, theirs = Build(), Build(provider="ck_tile")
    assert theirs.codegen.path(DECODE) == native.codegen.path(DECODE).parent / "ck_tile" / f"{DECODE.name}.cpp"
    store = Store(tmp_path / "cache", lambda text: None)
    store.set_index("gfx942", DECODE.name, "a" * 64, {}, "ck_tile")
    cache = Cache(store.root)
    assert cache.entry("gfx942", DECODE.name, "ck_tile").key == "a" * 64
    with pytest.raises(KernelNotFound):
        cache.entry("gfx942", DECODE.name)
    assert list(cache.entries()) == [] and len(list(cache.entries(provider=None))) == 1
    # An entry that lies in the wrong place is not believed.
    store.folder("index", "gfx950")
    wrong = cache.index_path("gfx942", DECODE.name)
    wrong.write_bytes(cache.index_path("gfx942", DECODE.name, "ck_tile").read_bytes())
    assert list(cache.entries("gfx942")) == []


def test_a_build_drops_nothing_of_another_provider(headers: Headers, tmp_path: Path) -> None:
    paths = Paths.of(CHECKOUT.root, cache=tmp_path / "cache", build=tmp_path / "build")
    build = Build(paths, provider="ck_tile", catalogue=load_catalogue())
    old = DECODE.name.replace("16x64x256", "16x64x128")
    build.store.set_index("gfx942", old, "a" * 64, describe_config(DECODE))
    assert build._replaced(DECODE) == []
    native = Build(paths, catalogue=load_catalogue())
    assert native._replaced(DECODE) == [old]


def test_loading_by_name_means_the_native_kernel(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", lambda text: None)
    store.set_index("gfx942", DECODE.name, "a" * 64, {}, "ck_tile")
    with pytest.raises(KernelNotFound, match="no usable kernel for gfx942/") as error:
        load(DECODE.name, cache=store.root, arch="gfx942")
    assert "refused" not in str(error.value)
    missing = pytest.warns(CorruptObjectWarning, match="has no object")
    with missing, pytest.raises(KernelNotFound, match="of provider ck_tile"):
        load(DECODE.name, cache=store.root, arch="gfx942", provider="ck_tile")


def test_an_object_without_provider_is_native() -> None:
    assert CacheObject(Path(), "a" * 64, {"arch": "generic", "name": "x"}, None).provider == "native"
