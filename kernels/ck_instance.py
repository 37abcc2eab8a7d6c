"""What one kernel becomes of Composable Kernel's templates, with the headers at hand, or why it can't be.

    family            pipeline                        main loop    tails
    decode            AQuantGemmPipelineAgBgCrMem     interwave    Odd, Even
    preshufflequant   AQuantGemmPipelineAgBgCrCompV3  intrawave    Odd, Even; Full after the loop

Each (main loop or not, tail) that a problem can need is an instance, a function of its own in the code object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kernels.ck_headers import Headers
from kernels.config import KernelConfig

_QUANT = "ops/gemm_quant"
_KERNEL = f"{_QUANT}/kernel/gemm_quant_kernel.hpp"
_PROBLEM = f"{_QUANT}/pipeline/gemm_quant_pipeline_problem.hpp"
_TRAITS = f"{_QUANT}/pipeline/tile_gemm_quant_traits.hpp"
_EPILOGUE = "ops/epilogue/cshuffle_epilogue.hpp"
_BLOCK = f"{_QUANT}/block/block_universal_gemm_as_aquant_bs_cr.hpp"

_TYPES = {"fp8": "fp8_t", "bf8": "bf8_t", "int4": "pk_int4_t", "f32": "float", "f16": "half_t", "bf16": "bf16_t"}

# Bytes that the memory pipeline wants in flight; fewer a tile, and it has more prefetch stages than tails.
_IN_FLIGHT = 32768


@dataclass(frozen=True)
class Pipeline:
    """One of Composable Kernel's AQuant pipelines: its class, its header, and its (hot loop, tail) instances."""

    name: str
    path: str
    instances: tuple[tuple[bool, str], ...]


_PIPELINES = {
    "mem": Pipeline(
        "AQuantGemmPipelineAgBgCrMem",
        f"{_QUANT}/pipeline/gemm_aquant_pipeline_ag_bg_cr_mem.hpp",
        ((False, "Odd"), (False, "Even"), (True, "Odd"), (True, "Even")),
    ),
    "compv3": Pipeline(
        "AQuantGemmPipelineAgBgCrCompV3",
        f"{_QUANT}/pipeline/gemm_aquant_pipeline_ag_bg_cr_v3.hpp",
        ((False, "Odd"), (False, "Even"), (True, "Full")),
    ),
}


def why_not(config: KernelConfig, headers: Headers) -> str | None:
    """Say why these headers can't do a kernel, as far as their text tells; None where they can."""
    if config.arch == "gfx90a":
        return "gfx90a has no FP8 matrix instruction; Composable Kernel compiles for it, and gives zeros"
    pipeline, scheduler = _PIPELINES[config.family_row.pipeline], config.family_row.scheduler.capitalize()
    text = headers.text(pipeline.path)
    where = f"the Composable Kernel in {headers.root}"
    if not re.search(rf"struct {pipeline.name}\b", text):
        return f"{where} has no {pipeline.name}"
    if f"PipelineImpl<GemmPipelineScheduler::{scheduler}>" not in text:
        return f"{pipeline.name} of {where} has no {scheduler} loop"
    if config.family_row.preshuffle and not re.search(r"\bA?PreshuffleQuant\b", text):
        return f"{pipeline.name} of {where} takes no preshuffled AQ"
    layout = config.layout_row
    if layout.aq_col and headers.find(_only_row_major("AQLayout"), _QUANT):
        return f"{where} takes a row-major AQ only, and {layout.name} stores it column-major"
    if layout.a_col and headers.find(_only_row_major("ALayout"), _QUANT):
        return f"{where} takes a row-major A only, and {layout.name} stores it column-major"
    if layout.a_col or not layout.b_col:
        missing = _missing_shuffle(text, headers)
        if missing:
            transposed = "A" if layout.a_col else "B"
            return f"{pipeline.name} of {where} reads the {transposed} of {layout.name} by {missing}, which it lacks"
    if config.variant_row.a == "int4" and not headers.text("host/permute_pk_int4.hpp"):
        return f"{where} does not say how it orders int4 (ck_tile/host/permute_pk_int4.hpp)"
    tm, tn, tk = config.tile
    if config.family_row.pipeline == "mem" and 2 * _tile_bytes(config) < _IN_FLIGHT:
        return f"tile {tm}x{tn}x{tk} is too small: {pipeline.name} would have more prefetch stages than it has tails"
    return None


def context(config: KernelConfig, headers: Headers) -> dict[str, Any]:
    """Return what the template instantiates: types, template arguments, instances, and the sizes that are accepted.

    Raises
    ------
    UnsupportedError
        If the headers lack a template, or it takes a parameter that is not known here.
    """
    variant, family = config.variant_row, config.family_row
    pipeline = _PIPELINES[family.pipeline]
    races = has_race(config, headers)
    flag = "true" if family.preshuffle else "false"
    shared = {"TransposeC": "false", "isCTransposed": "false"}
    traits = {
        **{"kPadM": "true", "kPadN": "true", "kPadK": "false"},
        **{"PreshuffleQuant": flag, "APreshuffleQuant": flag, "BPreshuffleQuant": "false", "PreshuffleB": "false"},
        **{"ALayout": "ALayout", "BLayout": "BLayout", "CLayout": "Row", "AQLayout": "AQLayout", "BQLayout": "BLayout"},
        **{"QuantType": "QuantType::AQuantGrouped", "DoubleSmemBuffer": "false", "UsePersistentKernel": "false"},
    }
    problem = {
        **{"ADataType": "A", "AQDataType": "AQ", "BDataType": "B", "CDataType": "Accumulator", "ComputeDataType": "B"},
        **{"BlockGemmShape": "Shape", "Traits": "Traits", "QuantGroupSize": "Group", "AQuantGroupSize": "Group"},
        "Scheduler": f"GemmPipelineScheduler::{block_scheduler(config, headers)}",
        **{"HasHotLoop": "kHotLoop", "TailNum": "kTail"},
    }
    m, n, k = (str(x) for x in config.warp_tile)
    epilogue = {
        **{"AsDataType": "A", "BsDataType": "B", "ADataType": "A", "BDataType": "B", "DsDataType": "tuple<>"},
        **{"AccDataType": "Accumulator", "ODataType": "C", "DsLayout": "tuple<>", "ELayout": "Row"},
        **{"CDElementwise": "element_wise::PassThrough", "MemoryOperation": "memory_operation_enum::set"},
        **{"kM": "Partitioner::MPerBlock", "kN": "Partitioner::NPerBlock"},
        **{"MWave": str(config.warps[0]), "NWave": str(config.warps[1]), "MPerXdl": m, "NPerXdl": n, "KPerXdl": k},
    }
    kernel = {
        **{"TilePartitioner": "Partitioner", "GemmPipeline": "Pipeline", "EpiloguePipeline": "Epilogue"},
        "QuantType": "QuantType::AQuantGrouped",
    }
    return {
        "types": {"a": _TYPES[variant.a], "b": _TYPES[variant.b], "aq": _TYPES[variant.aq], "c": _TYPES[config.out]},
        "arguments": {
            "traits": headers.arguments("TileGemmQuantTraits", _TRAITS, traits | shared),
            "problem": headers.arguments("GemmAQuantPipelineProblem", _PROBLEM, problem | shared),
            "epilogue": headers.arguments("CShuffleEpilogueProblem", _EPILOGUE, epilogue | shared),
            "kernel": headers.arguments("QuantGemmKernel", _KERNEL, kernel),
        },
        "pipeline": pipeline.name,
        "instances": [
            {"suffix": f"{'hot' if hot else 'cold'}_{tail.lower()}", "hot": hot, "tail": tail}
            for hot, tail in pipeline.instances
            if not (races and tail == "Even")
        ],
        "limits": {"n": 16 // (4 if config.out == "f32" else 2), "k": config.tile[2]}
        | ({"not_k": 2 * config.tile[2]} if races else {}),
        "why_excluded": f"where {pipeline.name} of these headers races: no barrier in its even tail" if races else "",
    }


def block_scheduler(config: KernelConfig, headers: Headers) -> str:
    """Return the scheduler of the block GEMM: the kernel's own where the headers have it, else Intrawave.

    The pipeline's loop is the kernel's in either case; this is about the instructions within a tile.
    """
    wanted = config.family_row.scheduler.capitalize()
    there = f"BlockGemmImpl<GemmPipelineScheduler::{wanted}" in headers.text(_BLOCK)
    return wanted if there else "Intrawave"


def has_race(config: KernelConfig, headers: Headers) -> bool:
    """Tell whether the pipeline's even tail overwrites a tile in LDS that other waves may still read.

    It does unless a barrier is seen between its condition and its first write to LDS.
    """
    if config.family_row.pipeline != "mem":
        return False
    text = headers.text(_PIPELINES["mem"].path)
    tail = re.search(r"TailNum == TailNumber::Even\)(.*?)LocalPrefill", text, re.DOTALL)
    return tail is None or "block_sync_lds" not in tail[1]


def _only_row_major(layout: str) -> str:
    return rf"static_assert\(\s*std::is_same_v<\s*{layout}\s*,\s*(?:ck_tile::)?tensor_layout::gemm::RowMajor\s*>"


def _missing_shuffle(pipeline: str, headers: Headers) -> str | None:
    """Return a function that the pipeline transposes a tile with and that no header defines."""
    names: list[str] = re.findall(r"Policy::template (\w*[sS]huffled\w*)<", pipeline)
    for name in dict.fromkeys(names):
        if not headers.find(rf"\bauto\s+{name}\(", "ops/gemm") and not headers.find(rf"\bauto\s+{name}\(", _QUANT):
            return name
    return None


def _tile_bytes(config: KernelConfig) -> int:
    tm, tn, tk = config.tile
    return (tm * (1 if config.variant_row.a == "int4" else 2) // 2 + tn) * tk
