"""The proof has teeth: faults put into the kernels on purpose, each of which must be found.

A fault counts as found where the simulator stops the launch, or a number is wrong. `message` says what must be found
where that is certain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from problems import check, random_problem
from simulated import ORDERS, PATHS, SIMULATOR, Device, Mutation, Violation, device_of, simulated

from kernels.catalogue import load_catalogue
from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.simulator import SimulatorError

SHAPES = [(17, 80, 384), (16, 64, 512), (7, 33, 130), (1, 64, 1024), (5, 80, 400), (16, 80, 512), (16, 64, 258)]


def kernel(arch: str, variant: str, layout: str, family: str = "decode") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


FP8 = kernel("gfx942", "fp8", "rcr")
BF8_950 = kernel("gfx950", "bf8", "rrr")
FP8_90A = kernel("gfx90a", "fp8", "crr")
BF8_90A = kernel("gfx90a", "bf8", "rcr")
RRR = kernel("gfx942", "fp8", "rrr")
CRR = kernel("gfx942", "fp8", "crr")
INT4 = kernel("gfx942", "fp8i4", "rcr")
INT4_CRR = kernel("gfx950", "bf8i4", "crr")
INT4_F32 = kernel("gfx942", "fp8i4f32", "rcr")
INT4_F32_950 = kernel("gfx950", "bf8i4f32", "crr")
INT4_CCR = kernel("gfx942", "fp8i4", "ccr")
CCR = kernel("gfx942", "fp8", "ccr")
SHUFFLED = kernel("gfx942", "fp8", "rcr", "preshufflequant")
TALL = replace(FP8, tile=(64, 64, 256))
MANY_ROWS = replace(CRR, tile=(256, 64, 128), warps=(4, 1, 1))  # more of them than k


@dataclass(frozen=True)
class Fault(Mutation):
    """A mutation, the kernels that it must break, and what must be said."""

    configs: tuple[KernelConfig, ...] = (FP8,)
    message: str = "."


GEMM, STAGE, CONVERT, MFMA = (f"hip/{name}.h" for name in ("gemm_aquant", "stage", "convert", "mfma"))

RACE = "race|never written"

FAULTS = [
    # Barriers
    Fault(
        "no barrier before the product", GEMM, "barrier();  // the tile is whole\n            if", "if", message=RACE
    ),
    Fault(
        "no barrier after the product",
        GEMM,
        "barrier();  // the tile has been read: the next",
        "// the next",
        message="race",
    ),
    Fault(
        "no barrier between two buffers",
        GEMM,
        "barrier();  // the next tile is whole",
        "// the next",
        (SHUFFLED,),
        RACE,
    ),
    Fault(
        "no barrier before an edge tile's product",
        GEMM,
        "barrier();  // the tile is whole\n                multiply",
        "multiply",
        message=RACE,
    ),
    Fault(
        "no barrier after an edge tile's product", GEMM, "barrier();  // the tile has been read\n", "\n", message="race"
    ),
    Fault("no barrier before a slab is stored", GEMM, "barrier();  // the slab is whole", "", message="race"),
    Fault("no barrier after a slab is stored", GEMM, "barrier();  // the slab has been read", "", (TALL,), "race"),
    # int4
    Fault(
        "nibbles swapped",
        CONVERT,
        "even = packed >> 4 & 0x0f0f0f0f;\n    const u32 odd = packed",
        "even = packed & 0x0f0f0f0f;\n    const u32 odd = packed >> 4",
        (INT4, INT4_CRR),
    ),
    Fault("nibbles swapped at the edges", STAGE, "(index & 1 ? 0 : 4)", "(index & 1 ? 4 : 0)", (INT4, INT4_CRR)),
    Fault(
        "int4 without its offset",
        CONVERT,
        "encode_int4(first + i - 8, format)",
        "encode_int4(first + i - 7, format)",
        (INT4, INT4_CRR),
    ),
    Fault(
        "a byte for each int4 element",
        STAGE,
        "element * bits_of(kKind) / 8",
        "element",
        (INT4, INT4_CRR),
        "outside of every allocation",
    ),
    # Encodings
    Fault("OCP table on gfx942", CONVERT, "return arch != Arch::gfx950;", "return arch == Arch::gfx90a;", (INT4_F32,)),
    Fault("FNUZ table on gfx950", CONVERT, "return arch != Arch::gfx950;", "return true;", (INT4_F32_950,)),
    Fault(
        "bias of a scale",
        CONVERT,
        "kRebias = power_of_two(127 - kFormat.bias);\n    const u32 magnitude",
        "kRebias = power_of_two(128 - kFormat.bias);\n    const u32 magnitude",
        (INT4, INT4_CRR),
    ),
    Fault("bias of e4m3 for gfx90a", CONVERT, "fnuz ? 8 : 7, fnuz", "fnuz ? 7 : 7, fnuz", (FP8_90A,)),
    Fault("bias of e5m2 for gfx90a", CONVERT, "fnuz ? 16 : 15, fnuz", "fnuz ? 15 : 15, fnuz", (BF8_90A,)),
    Fault(
        "fp8 instruction for bf8",
        "hip/sim/override/hip/device.h",
        "kKind == Kind::fp8 ? sim::MatrixOp::fp8_16x16x128",
        "true ? sim::MatrixOp::fp8_16x16x128",
        (BF8_950,),
    ),
    # Layouts and strides
    Fault(
        "QK for M as ccr's stride of AQ",
        STAGE,
        "return group * x.ld + m;",
        "return group * x.k_end + m;",
        (CCR, INT4_CCR),
    ),
    Fault(
        "AQ of ccr read by rows",
        STAGE,
        "if constexpr (Shape::kColumnScale) return group * x.ld + m;",
        "if constexpr (Shape::kColumnScale) return m * x.ld + group;",
        (CCR,),
    ),
    Fault(
        "shuffled AQ read as it is not",
        STAGE,
        "group / kGroups * x.ld + m * kGroups + group % kGroups",
        "m * x.ld + group",
        (SHUFFLED,),
    ),
    Fault("scale of the wrong row", GEMM, "group * kTileM + row)", "group * kTileM + row / 4)"),
    Fault("scale of the wrong group", GEMM, "4 * (group * kTileM + row)", "4 * row"),
    Fault(
        "A and B differ in their numbering of k",
        GEMM,
        "load_fragment<ATile>(buffer, row, group);",
        "load_fragment<ATile>(buffer, row, kGroups - 1 - group);",
    ),
    # Ends
    Fault("no zeros beyond K", STAGE, "for (auto& one : chunk) one = Packed<kKind, kElements>::zero();", ""),
    Fault(
        "rows beyond M are read",
        STAGE,
        "(row < x.rows ? row : x.rows - 1) * x.ld",
        "row * x.ld",
        message="outside of every allocation",
    ),
    Fault(
        "rows beyond M are stored",
        GEMM,
        "if (m < args.m) store_chunk",
        "store_chunk",
        message="outside of every allocation",
    ),
    Fault("columns beyond N are stored", GEMM, "if (n + kElements <= args.n) return", "return"),
    Fault("an edge tile is left out", GEMM, "tile = regular; tile <", "tile = 1 << 30; tile <"),
    Fault("edges are not told from the rest", STAGE, "return x.k_end % kElements == 0 ?", "return true ?"),
    Fault(
        "the last rows' chunks run past the matrix",
        STAGE,
        "return whole > hit ? whole - hit : 0;",
        "return whole + 0 * hit;",
        (RRR, MANY_ROWS),
        "outside of every allocation",
    ),
    Fault(
        "only the last tile's chunks are thought to run past it",
        STAGE,
        "i * Shape::kTileK < kRows",
        "i < 1",
        (MANY_ROWS,),
        "outside of every allocation",
    ),
    Fault("a partial tile of odd K is not an edge", STAGE, "excess <= 0 && rest % 4 == 0", "excess <= 0", (CRR,)),
]

# Changes that only move work about: they must not be found, or the test would prove nothing.
HARMLESS = [
    Fault("nothing", GEMM, "barrier();  // the slab is whole", "barrier();"),
    Fault("no permutation in LDS", "hip/tile.h", "(row ^ row / 16 * 2) & kMask", "0"),
    # Its scale is of the same encoding, and the two factors of 2 cancel.
    Fault(
        "OCP for both of int4 and its scale", CONVERT, "return arch != Arch::gfx950;", "return arch == Arch::gfx90a;"
    ),
    Fault("every tile is an edge tile", GEMM, "return of_a < of_b ? of_a : of_b;", "return of_a & of_b & 0;"),
]


def run(fault: Fault, config: KernelConfig, folder: Path) -> None:
    with simulated(config, fault.apply(folder)) as device:
        multiply_all(device, config)


def multiply_all(device: Device, config: KernelConfig) -> None:
    for turn, shape in enumerate(SHAPES):
        p = random_problem(config, shape, shuffled=config.family_row.preshuffle)
        check(config, p, device.multiply(config, p, ORDERS[turn % 3]))


def test_more_rows_than_k_in_a_tile() -> None:
    with simulated(MANY_ROWS) as device:
        multiply_all(device, MANY_ROWS)


CASES = [(fault, config) for fault in FAULTS for config in fault.configs]


@pytest.mark.parametrize(
    ("fault", "config"), CASES, ids=[f"{f.name}-{c.arch}-{c.variant}-{c.layout}" for f, c in CASES]
)
def test_fault_is_found(fault: Fault, config: KernelConfig, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=fault.message):
        run(fault, config, tmp_path)


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("config", [INT4, INT4_CRR, SHUFFLED], ids=lambda config: f"{config.variant}-{config.layout}")
def test_harmless_change_passes(fault: Fault, config: KernelConfig, tmp_path: Path) -> None:
    run(fault, config, tmp_path)


def wide_source(folder: Path) -> Path:
    """Return gfx942's decode kernel with gfx950's warp tile k."""
    text = Codegen(PATHS).generate(FP8).read_text()
    assert "kWarpTileK = 32;" in text
    path = folder / "kernel.cpp"
    path.write_text(text.replace("kWarpTileK = 32;", "kWarpTileK = 128;"))
    return path


def test_warp_tile_k_of_128_on_gfx942_does_not_compile(tmp_path: Path) -> None:
    with (
        pytest.raises(SimulatorError, match="the arch has no such matrix instruction"),
        SIMULATOR.device(wide_source(tmp_path)),
    ):
        pass


def test_warp_tile_k_of_128_on_gfx942_does_not_run(tmp_path: Path) -> None:
    unchecked = Mutation("any warp tile", MFMA, "warp_tile_k == 32 || warp_tile_k == 64", "true").apply(tmp_path)
    device = device_of(wide_source(tmp_path), tmp_path, unchecked)
    with pytest.raises(Violation, match="gfx942 has no v_mfma_scale_f32_16x16x128_f8f6f4"):
        multiply_all(device, FP8)
