"""Codegen: the stamp, what makes a source stale, and what template errors say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
from factory import config
from gemmill.errors import GemmillError, UnsupportedError
from hypothesis import given
from hypothesis import strategies as st

from kernels import codegen
from kernels.codegen import Codegen, CodegenError, c_string, read_source
from kernels.headers import scan
from kernels.paths import Paths


def write_template(paths: Paths, text: str, name: str = "cpu.cpp.j2") -> None:
    (paths.templates / name).write_text(text)


def test_generated_file(paths: Paths) -> None:
    path = Codegen(paths).generate(config())
    assert path == paths.build / "generated" / "generic" / f"{config().name}.cpp"
    stamp, _, body = path.read_text().partition("\n")
    assert stamp.startswith("// gemmill {") and body.startswith(f"// {config().name}\n")
    source = read_source(path)
    assert source is not None and source.text == body
    assert source.scan == scan(body) and source.scan.includes == ("abi.h", "tiny/alpha.h")
    assert not list(path.parent.glob(".*"))


def test_current_file_is_not_written_again(paths: Paths) -> None:
    path = Codegen(paths).generate(config())
    before = path.stat()
    Codegen(paths).generate(config())
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text.replace("GEMMILL_TINY_COUNT", "1"),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.partition("\n")[2],
        lambda text: text.replace('"includes":["abi.h",', '"includes":['),
        lambda text: re.sub('"tokens":"....', '"tokens":"0000', text),
        lambda text: re.sub('"inputs":"....', '"inputs":"0000', text),
        lambda text: text.replace("// gemmill {", "// gemmill ["),
        lambda text: "// gemmill {}\n" + text,
        lambda text: "// gemmill 3\n" + text,
    ],
)
def test_damaged_file_is_noticed_and_generated_again(paths: Paths, damage: object) -> None:
    path = Codegen(paths).generate(config())
    good = path.read_text()
    path.write_text(damage(good))  # type: ignore[operator]
    assert not Codegen(paths).is_current(config())
    Codegen(paths).generate(config())
    assert path.read_text() == good


def test_binary_file_in_its_place(paths: Paths) -> None:
    path = Codegen(paths).generate(config())
    path.write_bytes(b"\xff\xfe")
    assert not Codegen(paths).is_current(config())


def test_template_edit_makes_it_stale(paths: Paths) -> None:
    Codegen(paths).generate(config())
    template = paths.templates / "cpu.cpp.j2"
    template.write_text(template.read_text() + "// more\n")
    assert not Codegen(paths).is_current(config())


@pytest.mark.parametrize(
    "reference", ['{% include "part.j2" %}', '{%- from "part.j2" import x %}', "{% import 'part.j2' as part %}"]
)
def test_edit_of_a_template_that_is_named_makes_it_stale(paths: Paths, reference: str) -> None:
    write_template(paths, f"{reference}\n")
    write_template(paths, '{% include "leaf.j2" %}{% macro x() %}{% endmacro %}', "part.j2")
    write_template(paths, "// leaf\n", "leaf.j2")
    Codegen(paths).generate(config())
    assert Codegen(paths).is_current(config())
    write_template(paths, "// leaves\n", "leaf.j2")
    assert not Codegen(paths).is_current(config())


def test_change_of_codegen_itself_makes_it_stale(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    Codegen(paths).generate(config())
    monkeypatch.setattr(codegen, "_module_digest", lambda: "another")
    assert not Codegen(paths).is_current(config())


def test_abi_version_makes_it_stale(paths: Paths) -> None:
    Codegen(paths).generate(config())
    header = paths.native / "abi.h"
    header.write_text(re.sub(r"(ABI_VERSION )\d+", r"\g<1>77", header.read_text()))
    assert not Codegen(paths).is_current(config())
    assert '\\"abi\\":77' in Codegen(paths).generate(config()).read_text()


def test_all_names_are_given_to_the_template(paths: Paths) -> None:
    write_template(
        paths,
        "// {{ config.tile }} {{ arch.name }} {{ variant.a }} {{ layout.a_col }} {{ family.pipeline }} {{ name }}\n"
        "const char* text = {{ manifest | c_string }};\n",
    )
    text = Codegen(paths).generate(config("fp8i4", "ccr")).read_text()
    assert f"// (8, 8, 128) generic int4 True mem {config('fp8i4', 'ccr').name}\n" in text
    literal = re.search(r"text = (.*);", text)
    assert literal is not None
    manifest = json.loads(ast.literal_eval(literal[1]))
    assert manifest["operands"]["AQ"] == {"dtype": "float8_e4m3fn", "order": "column"}
    assert (manifest["abi"], manifest["backend"], manifest["arch"]) == (2, "cpu", "generic")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n{{ nonsense }}\n", r"cpu.cpp.j2:3: 'nonsense' is undefined"),
        ("\n{{ config.colour }}\n", r"cpu.cpp.j2:2: .*colour"),
        ("\n{% if %}\n", r"cpu.cpp.j2:2: Expected an expression"),
        ('\n{% include "gone.j2" %}\n', r"failed to read template .*gone.j2, which cpu.cpp.j2 names: No such file"),
        ("{{ 1 / 0 }}", r"cpu.cpp.j2:1: .*division"),
        ("{{ name.nothing() }}", r"cpu.cpp.j2:1: "),
    ],
)
def test_template_errors_name_file_and_line(paths: Paths, text: str, message: str) -> None:
    write_template(paths, text)
    with pytest.raises(CodegenError, match=message):
        Codegen(paths).generate(config())
    assert not Codegen(paths).path(config()).exists()


def test_error_in_a_named_template_names_that_one(paths: Paths) -> None:
    write_template(paths, '\n\n\n{% include "part.j2" %}\n')
    write_template(paths, "\n{{ nonsense }}\n", "part.j2")
    with pytest.raises(CodegenError, match=r"part.j2:2: 'nonsense' is undefined"):
        Codegen(paths).generate(config())


def test_missing_template(paths: Paths) -> None:
    (paths.templates / "cpu.cpp.j2").unlink()
    with pytest.raises(CodegenError, match=r"failed to read template .*cpu.cpp.j2: No such file"):
        Codegen(paths).generate(config())


def test_unwritable_place(paths: Paths) -> None:
    paths.build.write_text("a file where the directory should be")
    with pytest.raises(GemmillError, match=r"failed to write .*: "):
        Codegen(paths).generate(config())


def test_missing_backend(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"needs the x backend|not built yet"):
        monkeypatch.setattr(codegen, "find_backend", _no_backend)
        Codegen(paths).generate(config())


def _no_backend(arch: str, provider: str = "native") -> None:
    raise UnsupportedError(f"cannot build for {arch}: the x backend is not built yet")


def test_c_string_means_its_text_to_a_compiler(tmp_path: Path) -> None:
    text = "\"quoted\" \\back\n\ttab ??= ümläut \x01 7\x007 'single' %s end"
    program = f"#include <cstdio>\nint main() {{ fwrite({c_string(text)}, 1, {len(text.encode())}, stdout); }}"
    subprocess.run(["g++", "-trigraphs", "-x", "c++", "-", "-o", tmp_path / "p"], input=program.encode(), check=True)
    assert subprocess.run([tmp_path / "p"], capture_output=True, check=True).stdout == text.encode()


@given(st.text())
def test_c_string_is_printable_ascii_and_inverts(text: str) -> None:
    literal = c_string(text)
    assert re.fullmatch(r'"[ -~]*"', literal)
    assert ast.literal_eval("b" + literal.replace(r"\?", "?")).decode() == text
