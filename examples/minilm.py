"""Embed sentences with every linear layer in FP8 or int4 through gemmill, beside float32.

    python examples/minilm.py                              all variants, the sentences beside this file
    python examples/minilm.py --variants fp8,bf8 --sentences my.txt
    python examples/minilm.py --json                       every figure, of every linear layer

Needs decode kernels of layout rcr, which ./mill makes, and the packages that README.md names. Kernels are looked
for in the repository's cache/ unless GEMMILL_CACHE names another one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from encoder import LAYERS, ROLES, Encoder, Floats, MissingPackage, load_encoder
from gemmill.errors import GemmillError
from gemmill.search import VARIABLE
from gemmill.variant import VARIANTS, find_variant
from linears import Float32Linears, GemmillLinears, Record, relative_error

SENTENCES = Path(__file__).with_name("sentences.txt")
NEAR = 5  # neighbours of a sentence that are compared beside the nearest one


@dataclass
class Run:
    """One forward pass: embeddings [S, 384], every layer's output [tokens, 384], and each linear layer's figures."""

    name: str
    embeddings: Floats
    states: list[Floats]
    records: dict[str, Record]


def forward(encoder: Encoder, sentences: list[str], variant: str | None, repeat: int = 3) -> Run:
    """Run the encoder, in float32 where `variant` is None; `repeat` times, of which the best times are kept."""
    linears = GemmillLinears(encoder, variant) if variant else Float32Linears(encoder)
    for _ in range(repeat):
        embeddings, states = encoder.encode(sentences, linears)
    return Run(variant or "float32", embeddings, states, linears.records)


def neighbours(embeddings: Floats, count: int) -> Any:
    """Return for each sentence the indices of the `count` others most like it, best first: [S, count]."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return np.argsort(-similarity, axis=1, kind="stable")[:, :count]


def compare(run: Run, base: Run, blocks: list[int]) -> dict[str, Any]:
    """Return all figures of `run`; errors are against `base`, the float32 run.

    ``near`` is the share of each sentence's `NEAR` nearest that float32 has too, ``nearest`` that of sentences
    with the same nearest one, ``block`` that of sentences whose nearest is in their own block of the file.
    """
    cosine = np.sum(run.embeddings * base.embeddings, axis=1)
    near = min(NEAR, len(cosine) - 1)
    ours, theirs = neighbours(run.embeddings, near), neighbours(base.embeddings, near)
    own = np.array(blocks)
    return {
        "variant": run.name,
        "cosine_mean": float(cosine.mean()),
        "cosine_min": float(cosine.min()),
        "nearest": float(np.mean(ours[:, 0] == theirs[:, 0])),
        "near": float(np.mean([len(set(a) & set(b)) / near for a, b in zip(ours, theirs, strict=True)])),
        "block": float(np.mean(own[ours[:, 0]] == own)),
        "layers": [
            {
                "state_error": relative_error(run.states[layer], base.states[layer]),
                "linears": {
                    role: {
                        "error": record.error,
                        "quantise_ms": record.quantise_s * 1e3,
                        "multiply_ms": record.multiply_s * 1e3,
                    }
                    for role in ROLES
                    for record in [run.records[f"encoder.layer.{layer}.{role}"]]
                },
            }
            for layer in range(LAYERS)
        ],
    }


def read_sentences(path: Path) -> tuple[list[str], list[int]]:
    """Return a file's sentences, one a line, and for each the number of its block; blank lines part blocks."""
    sentences, blocks, block = [], [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            block += 1
        elif not line.startswith("#"):
            sentences.append(line.strip())
            blocks.append(block)
    if len(sentences) < 2:
        raise ValueError(f"{path} has {len(sentences)} sentences: at least 2 are needed, one a line")
    return sentences, blocks


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their header; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


def print_report(results: list[dict[str, Any]]) -> None:
    """Print the figures of `compare`; the first result is float32's own."""
    names = [r["variant"] for r in results]
    figures = ("cosine_mean", "cosine_min", "nearest", "near", "block")
    header = ("variant", "mean cosine", "min cosine", "same nearest", f"same {NEAR} nearest", "own block")
    print_table(
        "embeddings against float32", header, [[r["variant"], *(f"{r[f]:.4f}" for f in figures)] for r in results]
    )

    def linears(result: dict[str, Any], role: str) -> list[dict[str, float]]:
        return [layer["linears"][role] for layer in result["layers"]]

    def percent(errors: list[float]) -> str:
        return f"{100 * float(np.sqrt(np.mean(np.square(errors)))):.2f}"

    def ms(values: list[dict[str, float]]) -> str:
        quantise, multiply = (sum(v[key] for v in values) for key in ("quantise_ms", "multiply_ms"))
        return f"{multiply:.1f} + {quantise:.1f}" if quantise else f"{multiply:.1f}"

    print_table(
        "error that a linear layer adds, % (root mean square over the layers)",
        ("linear layer", *names[1:]),
        [[role, *(percent([v["error"] for v in linears(r, role)]) for r in results[1:])] for role in ROLES],
    )

    def layer_errors(layer: dict[str, Any]) -> str:
        added = percent([v["error"] for v in layer["linears"].values()])
        return f"{added} / {100 * layer['state_error']:.1f}"

    print_table(
        "error by layer, %: what its linear layers add (root mean square) / what its output has gathered",
        ("layer", *names[1:]),
        [[str(i), *(layer_errors(r["layers"][i]) for r in results[1:])] for i in range(LAYERS)],
    )
    print_table(
        "time of the linear layers in ms: multiply + quantise, best run",
        ("layer", *names),
        [
            *([str(i), *(ms(list(r["layers"][i]["linears"].values())) for r in results)] for i in range(LAYERS)),
            ["all", *(ms([v for role in ROLES for v in linears(r, role)]) for r in results)],
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, metavar="FILE", help="UTF-8, one sentence a line")
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="forward passes to time (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print every figure as JSON instead of the tables")
    options = parser.parse_args(arguments)
    try:
        variants = [find_variant(name).name for name in options.variants.split(",")]
        sentences, blocks = read_sentences(options.sentences)
        encoder = load_encoder()
        runs = [forward(encoder, sentences, variant, max(1, options.repeat)) for variant in (None, *variants)]
    except (MissingPackage, GemmillError, OSError, ValueError) as error:
        print(f"minilm.py: {error}", file=sys.stderr)
        return 1
    results = [compare(run, runs[0], blocks) for run in runs]
    if options.json:
        print(json.dumps({"sentences": len(sentences), "tokens": len(runs[0].states[0]), "results": results}, indent=2))
    else:
        print(f"{len(sentences)} sentences, {len(runs[0].states[0])} tokens")
        print_report(results)
    return 0


if __name__ == "__main__":
    os.environ.setdefault(VARIABLE, str(Path(__file__).resolve().parent.parent / "cache"))
    sys.exit(main())
