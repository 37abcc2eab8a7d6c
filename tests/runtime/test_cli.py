"""The command gemmill: what it prints, its exit status, and its errors in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gemmill import __version__, device
from gemmill.cli import main
from generators import DAMAGES, object_directory
from support import add_fake, fake_config

CONFIG = fake_config()


def lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_list(found_cache, capsys):
    passed = add_fake(found_cache.root)
    add_fake(found_cache.root, fake_config("bf8"), outcome=None)
    broken = add_fake(found_cache.root, fake_config("fp8i4"))
    DAMAGES["flipped bit"][0](object_directory(found_cache, broken))
    assert main(["list"]) == 0
    out = lines(capsys)
    assert out[0].split() == ["ARCH", "KERNEL", "PROVIDER", "KEY", "SELFTEST"]
    found = {row.split()[1]: row.split()[4] for row in out[1:]}
    assert found == {
        CONFIG.name: "passed",
        fake_config("bf8").name: "untested",
        fake_config("fp8i4").name: "corrupt",
    }
    assert passed[:12] in "\n".join(out)


def test_list_json(found_cache, capsys):
    key = add_fake(found_cache.root)
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "cache": str(found_cache.root),
            "arch": "generic",
            "name": CONFIG.name,
            "provider": "native",
            "key": key,
            "outcome": "passed",
            "refusal": None,
        }
    ]


def test_list_of_nothing_says_where_it_looked(found_cache, capsys):
    assert main(["list"]) == 0
    assert str(found_cache.root) in lines(capsys)[0]
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_cache_and_arch_options(found_cache, cache, tmp_path, capsys):
    add_fake(tmp_path / "other")
    assert main(["list", "--cache", str(tmp_path / "other")]) == 0
    assert len(lines(capsys)) == 2
    assert main(["list", "--cache", str(tmp_path / "other"), "--arch", "x86-64-v3"]) == 0
    assert "no kernels in" in lines(capsys)[0]


@pytest.mark.parametrize("wanted", [CONFIG.name, f"generic/{CONFIG.name}", "KEY", "PREFIX"])
def test_show(found_cache, capsys, wanted):
    key = add_fake(found_cache.root)
    wanted = wanted.replace("KEY", key).replace("PREFIX", key[:9])
    assert main(["show", wanted]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"generic/{CONFIG.name}\n")
    for text in (key, "tile       4x8x256", "variant    fp8", "selftest   passed", "kernel.so"):
        assert text in out
    assert main(["show", wanted, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["manifest"]["key"] == key
    assert shown["selftest"]["outcome"] == "passed"


@pytest.mark.parametrize("command", ["show", "explain", "selftest"])
def test_unknown_kernels_are_one_line_and_status_2(found_cache, capsys, command):
    assert main([command, "nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"gemmill: no kernel or key 'nothing' in .*\n", captured.err)


def test_a_name_of_two_archs_asks_which(found_cache, capsys):
    add_fake(found_cache.root)
    add_fake(found_cache.root, fake_config(arch="x86-64-v3"))
    assert main(["show", CONFIG.name]) == 2
    assert "exists for several archs: say --arch generic or x86-64-v3" in capsys.readouterr().err
    assert main(["show", CONFIG.name, "--arch", "x86-64-v3"]) == 0
    assert main(["show", f"x86-64-v3/{CONFIG.name}"]) == 0


def test_verify(found_cache, capsys):
    keys = [add_fake(found_cache.root, fake_config(v)) for v in ("fp8", "bf8")]
    assert main(["verify"]) == 0
    assert lines(capsys) == ["2 objects verified, 0 broken"]
    DAMAGES["flipped bit"][0](object_directory(found_cache, keys[0]))
    (object_directory(found_cache, keys[1]) / "kernel.so").chmod(0o666)
    assert main(["verify"]) == 1
    out = lines(capsys)
    assert out[-1] == "0 objects verified, 2 broken"
    assert any(line.startswith(keys[0][:12]) and "the manifest says" in line for line in out)
    assert any(line.startswith(keys[1][:12]) and "written by everybody" in line for line in out)


def test_verify_sees_index_entries_without_object(found_cache, capsys):
    import shutil

    key = add_fake(found_cache.root)
    shutil.rmtree(object_directory(found_cache, key))
    assert main(["verify"]) == 1
    assert f"with absent key {key}" in capsys.readouterr().out


def test_verify_sees_broken_index_entries(found_cache, capsys):
    add_fake(found_cache.root)
    found_cache.index_path(CONFIG.arch, CONFIG.name).write_text("{")
    assert main(["verify"]) == 1
    out = lines(capsys)
    assert f"{CONFIG.name}.json is not readable JSON" in out[0]
    assert out[-1] == "1 objects verified, 1 broken"


def test_selftest_runs_what_is_untested(found_cache, capsys):
    good = add_fake(found_cache.root, outcome=None)
    bad = add_fake(found_cache.root, fake_config("bf8"), "FAULT_ZEROS", outcome=None)
    assert main(["selftest"]) == 1
    out = lines(capsys)
    assert out[-1] == "1 failed, 1 passed"
    assert any(line.startswith("passed") and line.endswith(CONFIG.name) for line in out)
    assert any(line.startswith("failed") and "C is all zeros" in line for line in out)
    assert found_cache.read(good).outcome == "passed"
    assert found_cache.read(bad).outcome == "failed"
    assert main(["selftest"]) == 0
    assert lines(capsys) == ["nothing to test"]
    assert main(["selftest", CONFIG.name]) == 0
    assert lines(capsys)[-1] == "1 passed"
    assert main(["selftest", "--all"]) == 1
    assert lines(capsys)[-1] == "1 failed, 1 passed"


def test_selftest_tests_what_was_only_simulated(found_cache, capsys):
    key = add_fake(found_cache.root, outcome="simulated")
    assert main(["selftest"]) == 0
    assert lines(capsys)[-1] == "1 passed"
    assert found_cache.read(key).outcome == "passed"


def test_selftest_counts_what_cannot_run_here_apart(found_cache, capsys, monkeypatch):
    add_fake(found_cache.root, outcome=None)
    monkeypatch.setitem(device.BACKENDS, "cpu", lambda row: "no such device")
    assert main(["selftest", "--all"]) == 0
    assert lines(capsys)[-1] == "1 untested"
    assert main(["selftest", CONFIG.name]) == 1  # asked for by name, and not done
    assert lines(capsys)[-1] == "1 untested"


@pytest.mark.parametrize("command", ["list", "verify", "env"])
def test_a_cache_that_is_not_there_is_an_error(tmp_path, capsys, command):
    assert main([command, "--cache", str(tmp_path / "typo")]) == 2
    assert f"--cache {tmp_path / 'typo'}: there is no such directory" in capsys.readouterr().err


def test_selftest_of_a_corrupt_object_fails(found_cache, capsys):
    key = add_fake(found_cache.root)
    DAMAGES["flipped bit"][0](object_directory(found_cache, key))
    assert main(["selftest", "--all"]) == 1
    assert lines(capsys)[0].startswith("corrupt")


def test_selftest_says_when_nothing_is_recorded(found_cache, capsys, monkeypatch):
    from gemmill import selftest

    add_fake(found_cache.root, outcome=None)
    monkeypatch.setattr(selftest, "_save", lambda cache, record: {"saved": False, "not_saved": "read-only"})
    assert main(["selftest"]) == 0
    assert "         not recorded: read-only" in lines(capsys)


def test_explain(found_cache, capsys):
    old = add_fake(found_cache.root, source="a\nb\n")
    new = add_fake(found_cache.root, source="a\nc\n", inputs={"flags": ["-O3"]})
    assert main(["explain", CONFIG.name]) == 0
    out = capsys.readouterr().out
    assert f"key {new}" in out
    assert 'config.variant = "fp8"' in out
    assert main(["explain", old, new]) == 0
    out = lines(capsys)
    assert out[-2:] == ["-b", "+c"]
    assert "flags:" in out
    assert '  + ["-O3"]' in out
    assert main(["explain", old, new, new]) == 2


def test_env(found_cache, capsys, tmp_path):
    add_fake(found_cache.root)
    key = add_fake(found_cache.root, fake_config("bf8"), outcome=None)
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"gemmill {__version__}" in out
    assert re.search(r"generic +ocp +runs here", out)
    assert re.search(r"gfx942 +fnuz +no gfx942 device here: the driver shows no AMD GPU", out)
    assert f"{found_cache.root} (GEMMILL_CACHE): 2 kernels, 2 objects" in out
    assert f"{tmp_path / 'xdg' / 'gemmill'} (XDG_CACHE_HOME): absent" in out
    assert re.search(rf"generic/{CONFIG.name} \(.*\): accepted", out)
    assert re.search(rf"{key[:12]} in .*: its selftest outcome is untested", out)


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gemmill", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_as_a_program(found_cache):
    add_fake(found_cache.root)
    assert run("--version").stdout == f"gemmill {__version__}\n"
    assert run("list").returncode == 0
    missing = run("show", "nothing")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.count("\n") == 1
    assert run().returncode == 2
    assert run("list", "--arch", "sm_90").returncode == 2
    assert "'sm_90a'" in run("list", "--arch", "sm_90").stderr or "sm_90a" in run("list", "--arch", "sm_90").stderr


def test_commands_that_need_no_arrays_load_no_numpy(found_cache):
    add_fake(found_cache.root)
    code = "import sys; from gemmill.cli import main; main(sys.argv[1:]); assert 'numpy' not in sys.modules"
    for command in (["list"], ["show", CONFIG.name], ["verify"], ["explain", CONFIG.name], ["env"]):
        subprocess.run([sys.executable, "-c", code, *command], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"not \xff utf-8"])
def test_paths_that_the_terminal_cannot_show(cache, name):
    root = os.fsencode(cache.root.parent) + b"/" + name
    add_fake(Path(os.fsdecode(root)))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    for command in ("list", "env", "verify"):
        done = run(command, "--cache", os.fsdecode(root), env=environment)
        assert (done.returncode, done.stderr) == (0, "")
    assert run("show", "nothing", "--cache", os.fsdecode(root), env=environment).stderr.startswith("gemmill: no kernel")


def test_closed_stdout_is_no_error(found_cache):
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "gemmill", "list"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_timeout_is_a_positive_number(found_cache, capsys, text):
    with pytest.raises(SystemExit):
        main(["selftest", f"--timeout={text}"])
    assert f"{text} is no positive number of seconds" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(found_cache):
    for variant in ("fp8", "bf8", "fp8i4"):
        add_fake(found_cache.root, fake_config(variant))
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "gemmill", "env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 0


# bench


@pytest.fixture
def kernels(found_cache):
    for config in (CONFIG, fake_config("bf8i4", "ccr"), fake_config("fp8i4f32", "rrr", "preshufflequant")):
        add_fake(found_cache.root, config)


def table(out: str) -> dict[str, float]:
    """Return {variant: error} of a bench table."""
    rows = [line.split() for line in out.splitlines() if re.match(r"  \w+ +[rc]{3} ", line)]
    return {row[0]: float(row[5]) for row in rows}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_bench_npy(kernels, tmp_path, capsys, dtype):
    import ml_dtypes

    weight = np.random.default_rng(0).standard_normal((20, 300)) * 0.05
    np.save(tmp_path / "w.npy", weight.astype(getattr(ml_dtypes, dtype, dtype)))
    assert main(["bench", str(tmp_path / "w.npy"), "--rows", "4"]) == 0
    out = capsys.readouterr().out
    assert f"w: M=4 N=20 K=300 {dtype}, numpy float32" in out
    errors = table(out)
    assert set(errors) == {"fp8", "bf8i4", "fp8i4f32"}
    assert 0.01 < errors["fp8"] < 0.06
    assert 0.03 < errors["fp8i4f32"] < 0.25
    assert 0.03 < errors["bf8i4"] < 0.25


def test_bench_safetensors(kernels, tmp_path, capsys):
    numpy_io = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    tensors = {
        "layer.weight": rng.standard_normal((20, 300)).astype(np.float16),
        "other.weight": rng.standard_normal((7, 130)).astype(np.float32),
        "bias": np.ones(20, np.float32),
        "ids": np.ones((2, 2), np.int64),
    }
    numpy_io.save_file(tensors, tmp_path / "model.safetensors")
    path = str(tmp_path / "model.safetensors")
    assert main(["bench", path, "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "layer.weight: M=2 N=20 K=300 float16" in out
    assert "other.weight: M=2 N=7 K=130 float32" in out
    assert "bias" not in out
    assert "ids" not in out
    assert main(["bench", path, "--tensor", "other"]) == 0
    assert "layer" not in capsys.readouterr().out
    assert main(["bench", path, "--limit", "1"]) == 0
    assert "other" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("w.npy", None, "no such file"),
        ("w.npy", b"nonsense", "is no .npy file of plain numbers"),
        ("w.npy", b"", "is no .npy file of plain numbers"),
        ("w.safetensors", b"nonsense", "is no readable .safetensors file"),
        ("w.bin", b"", "accepted are .npy and .safetensors files"),
    ],
)
def test_bench_refuses_in_one_line(kernels, tmp_path, capsys, name, content, text):
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["bench", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_bench_refuses_what_is_no_weight(kernels, tmp_path, capsys):
    path = tmp_path / "w.npy"
    np.save(path, np.ones(3))
    assert main(["bench", str(path)]) == 2
    assert "has no 2-D tensor of floats" in capsys.readouterr().err
    np.save(path, np.array([{}], object), allow_pickle=True)
    assert main(["bench", str(path)]) == 2
    assert "is no .npy file of plain numbers" in capsys.readouterr().err
    np.save(path, np.ones((2, 2)))
    assert main(["bench", str(path), "--rows", "0"]) == 2
    assert "rows 0: needed a positive number" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30])
def test_bench_takes_weights_of_any_order_and_size(kernels, tmp_path, capsys, scale):
    weight = np.random.default_rng(0).standard_normal((20, 300)) * scale
    np.save(tmp_path / "w.npy", np.asfortranarray(weight))
    assert main(["bench", str(tmp_path / "w.npy"), "--rows", "4"]) == 0
    assert set(table(capsys.readouterr().out)) == {"fp8", "bf8i4", "fp8i4f32"}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_bench_leaves_out_what_is_not_finite(kernels, tmp_path, capsys, value):
    np.save(tmp_path / "w.npy", np.full((20, 300), value))
    assert main(["bench", str(tmp_path / "w.npy")]) == 2
    assert "w: left out, it has values that are not finite" in capsys.readouterr().out


def test_bench_without_kernels_says_where_it_looked(found_cache, tmp_path, capsys):
    np.save(tmp_path / "w.npy", np.ones((2, 2)))
    assert main(["bench", str(tmp_path / "w.npy")]) == 2
    assert str(found_cache.root) in capsys.readouterr().err


def test_bench_without_safetensors_names_the_package(kernels, tmp_path, capsys, monkeypatch):
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["bench", str(tmp_path / "w.safetensors")]) == 2
    assert "needs the package safetensors, run: pip install safetensors" in capsys.readouterr().err
