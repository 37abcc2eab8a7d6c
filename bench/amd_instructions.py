"""Count the machine instructions of AMD kernels, statically, for each 256 of K.

    python bench/amd_instructions.py [ARCH ...] [--out FILE.md]

The device code of every f16 kernel of the catalogue is compiled to assembly, and the instructions of its main loop are
counted by kind: the loop that loads from global memory and multiplies, edges and epilogue left out. Every instruction
of the loop counts once, those in branches too. A count is no measurement: it says what a wave issues, not how long
that takes.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels import process  # noqa: E402
from kernels.backends import hip  # noqa: E402
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
    "global load": "global_load",
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
        if any(w.startswith("v_mfma") for w in words) and "global_load_dwordx4" in words:
            return words
    raise SystemExit("no loop of the assembly both loads and multiplies")


def count(words: list[str]) -> Counter[str]:
    """Count mnemonics by kind."""
    counts: Counter[str] = Counter()
    for word in words:
        kind = next((kind for kind, start in KINDS.items() if re.match(start, word)), "other")
        counts[kind] += 1
    return counts


def compile_kernel(config: KernelConfig, toolchain: Toolchain) -> tuple[str, dict[str, int]]:
    """Return a kernel's assembly, and what its code object says about it."""
    source = Codegen(CHECKOUT).generate(config)
    with tempfile.TemporaryDirectory() as folder:
        commands = hip.commands(config, source, CHECKOUT.native, Path("kernel.so"), toolchain)
        for argv in commands[:3]:
            code, out, err = process.run(argv, 300, cwd=folder, env=compiler_environment())
            if code:
                raise SystemExit(f"{config.id}: {err or out}")
        linked = Path(folder) / hip.CODE_OBJECT
        return (Path(folder) / "kernel.s").read_text(), read_kernels(linked)[config.name]


def rows(arch: str, toolchain: Toolchain) -> Iterator[str]:
    """Yield the table's lines."""
    for config in load_catalogue().configs(arch):
        assembly, figures = compile_kernel(config, toolchain)
        steps = 256 / config.tile[2]
        counts = {kind: round(number * steps) for kind, number in count(main_loop(assembly)).items()}
        cells = [str(counts.get(kind, 0)) for kind in KINDS]
        total = sum(counts.values())
        tile = "x".join(map(str, config.tile))
        yield (
            f"| {config.variant} | {config.layout} | {config.family} | {tile} | {' | '.join(cells)} | {total} "
            f"| {figures['vgprs']} | {figures['sgprs']} | {figures['lds_bytes']} |"
        )


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", metavar="ARCH", help=f"of {', '.join(ARCHS)} (default: all)")
    parser.add_argument("--out", type=Path, help="write Markdown here instead of printing it")
    options = parser.parse_args()
    toolchain = hip.find_toolchain(None, CHECKOUT.build / "memo" / "toolchain.json")
    head = ["variant", "layout", "family", "tile", *KINDS, "sum", "VGPRs", "SGPRs", "LDS bytes"]
    lines = [
        "# Instructions of AMD kernels",
        "",
        "Made by `python bench/amd_instructions.py --out docs/amd-instructions.md`: the main loop of each kernel, for",
        "each 256 of K, as one wave issues it. Counted in the assembly, not measured.",
        "",
        f"Compiled with {toolchain.identity['version']}.",
    ]
    for arch in options.archs or ARCHS:
        lines += ["", f"## {arch}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows(arch, toolchain)]
    text = "\n".join(lines) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
