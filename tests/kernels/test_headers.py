"""Headers: what a source reaches, and what does and does not change a digest."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import pytest
from gemmill.errors import GemmillError
from hypothesis import given
from hypothesis import strategies as st

from kernels.headers import Headers, IncludeError, ScanMemo, scan
from kernels.paths import CHECKOUT

SAME = [
    ("int a;", "int   a ;"),
    ("int a;", "int a; // comment"),
    ("int a;", "int/* comment */a;"),
    ("int a;\nint b;", "\n\nint a;\n\n\n  int b;\n"),
    ("int a;\n", "int a;\r\n"),
    ("a+b", "a + b"),
    ("a+ +b", "a +\n+ b"),
    ("f(1'000)", "f( 1'000 ) // don't"),
    ("x = 'c';", "x='c';"),
    ("#define F(x) x+1\n", "#define   F(x)\tx+1   // sum\n"),
    ("#define F(x) x+1\n", "# define F(x) x+1"),
    ("#define F x\n", "#define F /* a\n b */ x\n"),
    ("#define F a b\n", "#define F a \\\n   b\n"),
    ("#include <a/b>\n", "#  include  <a/b>  // why\n"),
    ('#include "a.h"\n', '  #include "a.h"'),
    ("int a; // x \\\n y\nint b;", "int a; int b;"),
    ('R"(a)";', 'R"(a)" ;'),
    ("#if X /* why */\n#endif", "#if X\n#endif"),
]

DIFFERENT = [
    ("int a;", "inta;"),
    ("int a;", "int b;"),
    ("a+ +b", "a++b"),
    ("a - -b", "a--b"),
    ("x > > y", "x >> y"),
    ('"a b"', '"a  b"'),
    ('"a // b"', '"a"'),
    ('"/* a */"', '""'),
    ("'a'", "'b'"),
    (r'"\""', r'"\\"'),
    ('R"(a b)"', 'R"(a  b)"'),
    ('R"(a // b)"', 'R"(a)"'),
    ('R"x(a)" b)x"', 'R"x(a)"  b)x"'),
    ('R"(a\nb)"', 'R"(a\n\nb)"'),
    ("#define F(x) x\n", "#define F (x) x\n"),
    ("#define F\n(x) x\n", "#define F (x) x\n"),
    ("#if X\nint a;\n#endif", "#if X int a;\n#endif"),
    ("#define F a\nb", "#define F a \\\nb"),
    ("#include <a/b>\n", "#include <a /b>\n"),
    ("#include <a//b>\n", "#include <a\n"),
    ("1'000", "1 '000'"),
    ("a\\\nb", "a b"),
    ("/* a", "/ * a"),
    ("x // a", "x // a\ny"),
    ('u8"a"', '"a"'),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_same_tokens(one: str, other: str) -> None:
    assert scan(one).digest == scan(other).digest


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_tokens(one: str, other: str) -> None:
    assert scan(one).digest != scan(other).digest


def test_includes_are_found_where_a_compiler_finds_them() -> None:
    text = """\
#include "a.h"
  #  include   "b/c.h"  // "d.h"
// #include "no1.h"
/* #include "no2.h"
#include "no3.h" */
#include <system.h>
const char* s = "#include \\"no4.h\\"";
const char* r = R"(
#include "no5.h"
)";
#if 0
#include "a.h"
#include "maybe.h"
#endif
"""
    # In a raw string a line may look like a directive: it then counts, which is only a rebuild too many.
    assert [name for name in scan(text).includes if name != "no5.h"] == ["a.h", "b/c.h", "maybe.h"]


def test_computed_include_is_refused() -> None:
    with pytest.raises(IncludeError, match=r"x.h includes HEADER, a macro"):
        scan("#include HEADER\n", "x.h")


_PIECES = st.sampled_from(
    ["int", "a1", "+", "++", '"s  s"', "'c'", "1.5e+3f", "(", ")", "::", "->", '"//"', '"/*"', "0x1p-3", "<", ">>="]
)
_GAPS = st.sampled_from([" ", "\n", "\t ", " // c\n", "/* c */", "\n\n", " /* ' */ ", ' // "\n', "\r\n"])


@given(st.lists(_PIECES, min_size=1), st.data())
def test_gaps_never_matter(pieces: list[str], data: st.DataObject) -> None:
    gapped = "".join(piece + data.draw(_GAPS) for piece in pieces)
    assert scan(gapped).digest == scan(" ".join(pieces)).digest


@given(st.lists(_PIECES, min_size=1), st.lists(_PIECES, min_size=1))
def test_tokens_always_matter(one: list[str], other: list[str]) -> None:
    assert (scan(" ".join(one)).digest == scan(" ".join(other)).digest) == (one == other)


@given(st.text(alphabet=string.ascii_letters + string.digits + "#/*\"'\\\n\r\t ()<>R_.+-", max_size=80))
def test_any_text_can_be_scanned(text: str) -> None:
    if not re.search(r"#\s*include", text):
        scan(text)


def test_the_real_headers_scan_and_reach_each_other() -> None:
    headers = Headers(CHECKOUT.native)
    for path in CHECKOUT.native.rglob("*.h"):
        name = str(path.relative_to(CHECKOUT.native))
        assert name in headers.reached((name,), "test")


def native(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_h", ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_closure(tmp_path: Path) -> None:
    root = native(
        tmp_path,
        a_h='#include "sub/b.h"\n',
        sub__b_h='#include "c.h"\n#include "a.h"\n#include "../d.h"\n',
        sub__c_h="int c;\n",
        c_h="#error the one beside the includer comes first\n",
        d_h="int d;\n",
        unrelated_h="int u;\n",
    )
    assert list(Headers(root).reached(("a.h",), "x")) == ["a.h", "d.h", "sub/b.h", "sub/c.h"]
    assert Headers(root).reached((), "x") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '#include "gone.h"',
            r'native/sub/a.h includes "gone.h", which is missing: looked for native/sub/gone.h or nat',
        ),
        ('#include "../../up.h"', r'native/sub/a.h includes "../../up.h", which lies outside native/'),
        ('#include "/etc/passwd"', "outside native/"),
        ('#include "folder"', "which is missing"),
    ],
)
def test_missing_header(tmp_path: Path, text: str, message: str) -> None:
    root = native(tmp_path, sub__a_h=text, sub__folder__x_h="")
    with pytest.raises(GemmillError, match=message):
        Headers(root).reached(("sub/a.h",), "the source of x")


def test_missing_header_of_the_source_names_the_source(tmp_path: Path) -> None:
    with pytest.raises(IncludeError, match=r'the source of x includes "a.h", which is missing: looked for native/a.h'):
        Headers(tmp_path).reached(("a.h",), "the source of x")


def test_memo_is_used_and_may_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, file = native(tmp_path / "native", a_h="int a;\n"), tmp_path / "memo" / "headers.json"
    expected = Headers(root, ScanMemo(file)).reached(("a.h",), "x")
    assert json.loads(file.read_text())["schema"] == ScanMemo.SCHEMA
    with monkeypatch.context() as patch:
        patch.setattr("kernels.headers.scan", None)  # it must not be called
        assert Headers(root, ScanMemo(file)).reached(("a.h",), "x") == expected
    for broken in ("", "{", "[]", '{"schema": 1}', '{"schema": 0, "scans": {}}', '{"schema": 1, "scans": []}'):
        file.write_text(broken)
        assert Headers(root, ScanMemo(file)).reached(("a.h",), "x") == expected


def test_memo_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    root = native(tmp_path / "native", a_h="int a;\n")
    (tmp_path / "memo").write_text("a file where the directory should be")
    assert Headers(root, ScanMemo(tmp_path / "memo" / "x.json")).reached(("a.h",), "x")
