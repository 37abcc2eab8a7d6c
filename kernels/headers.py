"""Which native headers a source reaches, and digests of them that only change when their tokens do.

Comments, blank lines and white space between tokens do not enter a digest; the contents of string, character and
raw-string literals do, and so do the line ends of preprocessor directives, where they are syntax. White space inside
a directive counts as one space, because ``#define F(x)`` is not ``#define F (x)``. Two things that comments and spaces
can still change are accepted: ``__LINE__``, and the text of a macro argument that is stringified.

Includes are followed without evaluating conditions: what might be included counts as included.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from gemmill.errors import GemmillError
from gemmill.files import write_atomically

# Order matters: what may contain comment or quote signs comes first.
_TOKEN = r"""(?x)
      (?m:^)[ \t]*\#[ \t]*include[ \t]*(?:"(?P<include>[^"\n]*)"|(?P<system><[^>\n]*>)|(?P<computed>[A-Za-z_]\w*))
    | (?P<space>(?:[ \t\f\v\r]|//(?:\\\r?\n|[^\n])*|/\*[\s\S]*?\*/)+(?:\\\r?\n[ \t]*)?|\\\r?\n[ \t]+)
    | (?P<newline>\n)
    | \#\#
    | (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\((?:[\s\S]*?)\)(?P=delimiter)"
    | (?:u8|[uUL])?"(?:\\[\s\S]|[^"\\\n])*"
    | (?:u8|[uUL])?'(?:\\[\s\S]|[^'\\\n])*'
    | \.?[0-9](?:[eEpP][+-]|'?\w|\.)*
    | [A-Za-z_$]\w*
    | /\*|<<=|>>=|<=>|->\*|\.\.\.|::|->|\.\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%^&|]=
    | [\s\S]
"""


class IncludeError(GemmillError):
    """A source includes a header that is not there, or one whose name can't be known without compiling."""


@dataclass(frozen=True)
class Scan:
    """What a source text says: the digest of its tokens, and its quoted includes as written, in order."""

    digest: str
    includes: tuple[str, ...]


def scan(text: str, label: str = "source") -> Scan:
    """Return the token digest and the includes of a C or C++ text.

    Parameters
    ----------
    text : str
    label : str
        What errors call it.
    """
    includes: dict[str, None] = {}
    parts: list[str] = []
    directive = spaced = False
    fresh = True  # nothing but space on this line so far
    for match in re.finditer(_TOKEN, text):  # compiled at its first use: most runs scan nothing
        group = match.lastgroup
        if group == "space":  # a block comment may span lines, and does not end a directive
            spaced = True
            continue
        if group == "newline":
            if directive:
                parts.append("\n")
            directive, spaced, fresh = False, False, True
            continue
        token = match[0]
        if directive and spaced and parts[-1] != "#":
            parts.append(" ")
        if group == "computed":
            raise IncludeError(f"{label} includes {match['computed']}, a macro: only a name in quotes can be followed")
        if group == "include":
            includes[match["include"]] = None
            token = f'#include "{match["include"]}"'
        elif group == "system":
            token = f"#include {match['system']}"
        directive = directive or (fresh and token.startswith("#"))
        fresh = spaced = False
        parts.append(token)
    if directive:
        parts.append("\n")
    digest = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape"))
    return Scan(digest.hexdigest(), tuple(includes))


class ScanMemo:
    """Remembers scans by the sha256 of the content they are of, in a JSON file that may be lost at any time."""

    SCHEMA = 1
    LIMIT = 4000  # entries; a checkout has a few dozen headers

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, list[str]] | None = None
        self._changed = False
        self._lock = threading.Lock()

    def scan(self, content: bytes, label: str) -> Scan:
        """Return the scan of a header's content."""
        raw = hashlib.sha256(content).hexdigest()
        with self._lock:
            if self._known is None:
                self._known = self._load()
            found = self._known.get(raw)
            if found is None:
                result = scan(content.decode(errors="surrogateescape"), label)
                found = self._known[raw] = [result.digest, *result.includes]
                self._changed = True
        return Scan(found[0], tuple(found[1:]))

    def save(self) -> None:
        """Write what was learnt, if anything was; a failure costs only time."""
        with self._lock:
            if self.path is None or not self._changed or self._known is None:
                return
            newest = dict(list(self._known.items())[-self.LIMIT :])
            with contextlib.suppress(OSError):
                write_atomically(self.path, json.dumps({"schema": self.SCHEMA, "scans": newest}).encode())
            self._changed = False

    def _load(self) -> dict[str, list[str]]:
        if self.path is None:
            return {}
        try:
            data = json.loads(self.path.read_bytes())
            if data["schema"] == self.SCHEMA:
                return {str(raw): [str(x) for x in entry] for raw, entry in data["scans"].items() if entry}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return {}


class Headers:
    """The native headers as they are now: each is read once, when first asked for.

    Parameters
    ----------
    native : Path
        The root of the headers: names are looked up beside the including file, then here.
    memo : ScanMemo, optional
    """

    def __init__(self, native: Path, memo: ScanMemo | None = None) -> None:
        self.native = native
        self.memo = memo or ScanMemo()
        self._scans: dict[str, Scan | None] = {}
        self._closures: dict[tuple[str, ...], dict[str, str]] = {}

    def reached(self, includes: tuple[str, ...], includer: str) -> dict[str, str]:
        """Return {path below native: token digest} of everything that a source with these includes reaches.

        Raises
        ------
        IncludeError
            Naming the includer, if a header is missing.
        """
        known = self._closures.get(includes)
        if known is None:
            found: dict[str, str] = {}
            pending = [(name, "", includer) for name in reversed(includes)]
            while pending:
                name, folder, by = pending.pop()
                path, scanned = self._find(name, folder, by)
                if path not in found:
                    found[path] = scanned.digest
                    pending += [(inner, posixpath.dirname(path), f"native/{path}") for inner in scanned.includes]
            self.memo.save()
            known = self._closures[includes] = dict(sorted(found.items()))
        return known

    def _find(self, name: str, folder: str, by: str) -> tuple[str, Scan]:
        candidates = dict.fromkeys((posixpath.normpath(posixpath.join(folder, name)), posixpath.normpath(name)))
        for path in candidates:
            if posixpath.isabs(path) or path.startswith(".."):
                raise IncludeError(f'{by} includes "{name}", which lies outside native/')
            if path not in self._scans:
                self._scans[path] = self._read(path)
            scanned = self._scans[path]
            if scanned is not None:
                return path, scanned
        places = " or ".join(f"native/{path}" for path in candidates)
        raise IncludeError(f'{by} includes "{name}", which is missing: looked for {places}')

    def _read(self, path: str) -> Scan | None:
        try:
            content = (self.native / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return self.memo.scan(content, f"native/{path}")
