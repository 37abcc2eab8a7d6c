"""Count the machine instructions of AMD kernels, statically, for each 256 of K.

    python bench/amd_instructions.py [ARCH ...] [--out FILE.md]

The device code of every f16 kernel of the catalogue is compiled to assembly, and the instructions of its main loop are
counted by kind: the loop that loads from global memory and multiplies, edges and epilogue left out. Every instruction
of the loop counts once, those in branches too. A turn of the loop may be several tiles: how much of K it takes follows
from its matrix instructions. A count is no measurement: it says what a wave issues, not how long that takes.

Where Composable Kernel's headers are at hand (docs/ck_tile.md), the kernels of provider=ck_tile stand below ours.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gemmill.errors import UnsupportedError  # noqa: E402

from kernels import process  # noqa: E402
from kernels.backends import ck_tile, hip  # noqa: E402
from kernels.catalogue import load_catalogue  # noqa: E402
from kernels.code_object import read_kernels  # noqa: E402
from kernels.codegen import Codegen  # noqa: E402
from kernels.config import KernelConfig  # noqa: E402
from kernels.paths import CHECKOUT  # noqa: E402
from kernels.toolchain import Toolchain, compiler_environment  # noqa: E402

ARCHS = ("gfx90a", "gfx942", "gfx950")

# Kinds, by the start of the mnemonic; the first that fits.
KINDS = {
    "matrix": "v_mfma",
    "LDS read": "ds_read",
    "LDS write": "ds_write",
    "lane exchange": "ds_b?permute",
    "global load": "(?:global|buffer)_load",
    "scratch": "scratch_",
    "vector": "v_",
    "wait": r"s_waitcnt|s_nop",
    "barrier": "s_barrier",
    "scalar": "s_",
}

_BLOCK = re.compile(r"^(?:\.L(?P<label>BB\d+_\d+):|; %bb\.\d+:)\s*(?P<rest>.*)")
_INSTRUCTION = re.compile(r"^\s+([a-z][a-z0-9_]+)\b")


def loops(assembly: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (header, mnemonics) of each loop, by the notes that the compiler writes at its blocks."""
    found: dict[str, list[str]] = {}
    header: str | None = None
    previous = None
    for line in assembly.splitlines():
        block = _BLOCK.match(line)
        if block:
            label, rest = block["label"], block["rest"]
            inside = re.search(r"in Loop: Header=(BB\d+_\d+)", rest)
            header = inside[1] if inside else None
            previous = label
            if label and "Loop Header" in rest:
                header = label
        elif previous and re.match(r"^\s*; +=>.*Loop Header", line):
            header = previous
        elif header and (word := _INSTRUCTION.match(line)):
            found.setdefault(header, []).append(word[1])
    yield from found.items()


def main_loop(assembly: str) -> list[str]:
    """Return the mnemonics of the loop that loads and multiplies."""
    for _, words in loops(assembly):
        is_loading = any(re.match(r"(?:global|buffer)_load_dwordx4$", word) for word in words)
        if is_loading and any(word.startswith("v_mfma") for word in words):
            return words
    raise SystemExit("no loop of the assembly both loads and multiplies")


def k_of_turn(words: list[str], config: KernelConfig) -> int:
    """Return how much of K a turn of the loop takes."""
    warp_tiles = config.tile[0] * config.tile[1] // (256 * config.warps[0] * config.warps[1])  # of a wave
    k = sum(int(found[1]) for word in words if (found := re.match(r"v_mfma\w*?_16x16x(\d+)", word)))
    return k // warp_tiles


def count(words: list[str]) -> Counter[str]:
    """Count mnemonics by kind."""
    counts: Counter[str] = Counter()
    for word in words:
        kind = next((kind for kind, start in KINDS.items() if re.match(start, word)), "other")
        counts[kind] += 1
    return counts


class Provider:
    """One provider of kernels: its backend and compiler."""

    def __init__(self, name: str, backend: Any, instance: str) -> None:
        self.name, self.backend, self.instance = name, backend, instance
        self.toolchain: Toolchain = backend.find_toolchain(None, CHECKOUT.build / "memo" / "toolchain.json")

    def why_not(self, config: KernelConfig) -> str | None:
        """Say why the provider has no such kernel; None where it has."""
        return ck_tile.why_not(config) if self.backend is ck_tile else None

    def compile(self, config: KernelConfig) -> tuple[list[str], dict[str, int]]:
        """Return the mnemonics of a kernel's main loop, and what its code object says about it."""
        source = Codegen(CHECKOUT, self.name).generate(config)
        with tempfile.TemporaryDirectory() as folder:
            commands = self.backend.commands(config, source, CHECKOUT.native, Path("kernel.so"), self.toolchain)
            for argv in commands[:3]:  # to assembly, object, code object
                code, out, err = process.run(argv, 300, cwd=folder, env=compiler_environment())
                if code:
                    raise SystemExit(f"{config.id}: {err or out}")
            assembly = (Path(folder) / "kernel.s").read_text()
            figures = read_kernels(Path(folder) / hip.CODE_OBJECT)
        # Composable Kernel's is several functions: the one with a loop is meant.
        name = next(name for name in figures if re.fullmatch(config.name + self.instance, name))
        body = re.search(rf"^{name}:(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
        return main_loop(body[1] if body else ""), figures[name]

    def row(self, config: KernelConfig) -> str:
        """Return a kernel's line of the table."""
        words, figures = self.compile(config)
        turns = 256 / k_of_turn(words, config)
        counts = {kind: round(number * turns) for kind, number in count(words).items()}
        cells = [str(counts.get(kind, 0)) for kind in KINDS]
        tile = "x".join(map(str, config.tile))
        return (
            f"| {config.variant} | {config.layout} | {config.family} | {tile} | {self.name} | {' | '.join(cells)} "
            f"| {sum(counts.values())} | {figures['vgprs']} | {figures['sgprs']} | {figures['lds_bytes']} |"
        )


def rows(arch: str, providers: list[Provider]) -> Iterator[str]:
    """Yield the table's lines."""
    configs = load_catalogue().configs(arch)
    pairs = [(one, config) for config in configs for one in providers if one.why_not(config) is None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda pair: pair[0].row(pair[1]), pairs)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", metavar="ARCH", help=f"of {', '.join(ARCHS)} (default: all)")
    parser.add_argument("--out", type=Path, help="write Markdown here instead of printing it")
    options = parser.parse_args()
    providers = [Provider("native", hip, "")]
    try:
        providers.append(Provider("ck_tile", ck_tile, "_hot_(?:odd|full)"))
    except UnsupportedError as error:
        print(f"without ck_tile: {error}", file=sys.stderr)
    head = ["variant", "layout", "family", "tile", "provider", *KINDS, "sum", "VGPRs", "SGPRs", "LDS bytes"]
    lines = [
        "# Instructions of AMD kernels",
        "",
        "Made by `python bench/amd_instructions.py --out docs/amd-instructions.md`: the main loop of each kernel, for",
        "each 256 of K, as one wave issues it. Counted in the assembly, not measured. Where the provider ck_tile has",
        "a kernel (with the Composable Kernel that [ck_tile.md](ck_tile.md) names), its line follows ours; that it",
        "permutes an int4 A in a kernel of its own before the product is not in the count.",
        "",
        *(f"{one.name}: compiled with {one.toolchain.identity['version']}." for one in providers),
    ]
    for arch in options.archs or ARCHS:
        lines += ["", f"## {arch}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows(arch, providers)]
    text = "\n".join(lines) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
