"""Render a kernel's source.

A generated file is its own memo. Its first line is a stamp:

    // gemmill {"includes": [...], "inputs": sha256, "tokens": sha256, "seal": sha256}

`inputs` says what it was rendered from (the templates, the config with its table rows, this module's text), `tokens`
and `includes` are the scan of the source (`kernels.headers.scan`), and `seal` is a digest of all that and of the rest
of the file. So an edited or truncated file is noticed, a run with nothing to render imports no Jinja2 (50 ms), and
the key needs no second look at the text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmill.cache import NATIVE, canonical_json, sha256_text
from gemmill.errors import GemmillError
from gemmill.files import signature, write_atomically

from kernels.backends import context, find_backend
from kernels.config import KernelConfig
from kernels.describe import embedded_manifest, read_abi_version
from kernels.headers import Scan, scan
from kernels.paths import CHECKOUT, Paths

if TYPE_CHECKING:
    import jinja2

_STAMP = "// gemmill "
_REFERENCE = re.compile(r"""\{%[-+]?\s*(?:include|extends|import|from)\s+["']([^"']+)["']""")


class CodegenError(GemmillError):
    """A template is missing, or can't be rendered; the text names template and line."""


@dataclass(frozen=True)
class Source:
    """A generated source that was found whole.

    Attributes
    ----------
    content : bytes
        The file, stamp included.
    inputs : str
        Digest of what it was rendered from.
    scan : Scan
        Of its text.
    """

    content: bytes
    inputs: str
    scan: Scan

    @property
    def text(self) -> str:
        """The rendered text, without the stamp."""
        return self.content.decode().partition("\n")[2]


class Codegen:
    """Generates sources of one checkout; templates are read once, when first needed.

    Parameters
    ----------
    paths : Paths
    provider : str
        Whose kernels.
    """

    def __init__(self, paths: Paths = CHECKOUT, provider: str = NATIVE) -> None:
        self.paths = paths
        self.provider = provider
        self._closures: dict[str, tuple[dict[str, str], str]] = {}
        self._inputs: dict[KernelConfig, str] = {}
        self._scans: dict[str, tuple[Any, str, Scan]] = {}
        self._environments: dict[str, jinja2.Environment] = {}

    def path(self, config: KernelConfig) -> Path:
        """Return where a kernel's source is generated: ``build/generated/<arch>/[<provider>/]<name>.cpp``."""
        folder = self.paths.generated / config.arch
        return (folder if self.provider == NATIVE else folder / self.provider) / f"{config.name}.cpp"

    def is_current(self, config: KernelConfig) -> bool:
        """Tell whether the generated file is whole and rendered from what is there now."""
        return self.current_scan(config) is not None

    def current_scan(self, config: KernelConfig) -> Scan | None:
        """Return the scan of the generated source where it is current, else None. The file is read when it changed."""
        path = f"{self.paths.generated}/{config.arch}/{config.name}.cpp"
        now, known = signature(path), self._scans.get(path)
        if known is None or known[0] != now:
            found = read_source(Path(path))
            if found is None:
                return None
            known = self._scans[path] = (now, found.inputs, found.scan)
        return known[2] if known[1] == self._digest(config) else None

    def source(self, config: KernelConfig) -> Source | None:
        """Return the generated source where it is current, else None."""
        found = read_source(self.path(config))
        return found if found is not None and found.inputs == self._digest(config) else None

    def generate(self, config: KernelConfig) -> Path:
        """Render the source unless it is current, write it atomically, and return its path.

        Raises
        ------
        UnsupportedError
            If the arch's backend does not exist yet.
        CodegenError
            If its template is missing or can't be rendered.
        """
        path = self.path(config)
        if not self.is_current(config):
            body = self._render(config)
            scanned = scan(body, path.name)
            stamp = {"includes": list(scanned.includes), "inputs": self._digest(config), "tokens": scanned.digest}
            line = canonical_json({**stamp, "seal": _seal(stamp, body)})
            try:
                write_atomically(path, f"{_STAMP}{line}\n{body}".encode())
            except OSError as error:
                raise CodegenError(f"failed to write {path}: {error.strerror}") from None
        return path

    def _digest(self, config: KernelConfig) -> str:
        known = self._inputs.get(config)
        if known is None:
            backend = find_backend(config.arch, self.provider)
            _, templates = self._templates(backend.TEMPLATE)
            extra = context(backend, config)
            parts = [templates, _module_digest(), _rows(config, self._abi), canonical_json(extra) if extra else ""]
            known = self._inputs[config] = sha256_text("".join(parts))
        return known

    def _templates(self, name: str) -> tuple[dict[str, str], str]:
        """Return the texts of a template and of those that it names, and one digest of them all."""
        known = self._closures.get(name)
        if known is None:
            texts: dict[str, str] = {}
            pending = [(name, "")]
            while pending:
                one, by = pending.pop()
                if one not in texts:
                    texts[one] = self._read(one, by)
                    pending += [(inner, f", which {one} names") for inner in _REFERENCE.findall(texts[one])]
            known = self._closures[name] = (texts, sha256_text(canonical_json(texts)))
        return known

    def _read(self, name: str, by: str) -> str:
        try:
            return (self.paths.templates / name).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CodegenError(f"failed to read template {self.paths.templates / name}{by}: {reason}") from None

    @functools.cached_property
    def _abi(self) -> int:
        return read_abi_version(self.paths.native)

    def _render(self, config: KernelConfig) -> str:
        import jinja2

        backend = find_backend(config.arch, self.provider)
        name, folder, extra = backend.TEMPLATE, self.paths.templates, context(backend, config)
        try:
            return (
                self._environment(name)
                .get_template(name)
                .render(
                    config=config,
                    arch=config.arch_row,
                    variant=config.variant_row,
                    layout=config.layout_row,
                    family=config.family_row,
                    name=config.name,
                    manifest=embedded_manifest(config, self._abi, self.provider, extra.get("limits")),
                    **extra,
                )
            )
        except jinja2.TemplateSyntaxError as error:
            raise CodegenError(f"{folder / (error.name or name)}:{error.lineno}: {error.message}") from None
        except Exception as error:  # a template's expression may raise anything
            raise CodegenError(f"{_place(error, folder / name)}: {error}") from error

    def _environment(self, name: str) -> jinja2.Environment:
        """Return the environment of a template and of those that it names; it keeps them compiled."""
        known = self._environments.get(name)
        if known is None:
            import jinja2

            texts, folder = self._templates(name)[0], self.paths.templates

            def load(one: str) -> tuple[str, str, None] | None:
                # The very text that was digested, whatever happens to the file meanwhile.
                return (texts[one], str(folder / one), None) if one in texts else None

            known = self._environments[name] = jinja2.Environment(
                loader=jinja2.FunctionLoader(load),
                undefined=jinja2.StrictUndefined,
                trim_blocks=True,
                lstrip_blocks=True,
                keep_trailing_newline=True,
            )
            known.filters["c_string"] = c_string
        return known


def read_source(path: Path) -> Source | None:
    """Return a generated file's content and stamp, None where it is missing or not whole."""
    try:
        content = path.read_bytes()
        line, _, body = content.decode().partition("\n")
        stamp: dict[str, Any] = json.loads(line.removeprefix(_STAMP))
        seal = stamp.pop("seal")
        if seal != _seal(stamp, body):
            return None
        return Source(content, stamp["inputs"], Scan(stamp["tokens"], tuple(stamp["includes"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def c_string(text: str) -> str:
    """Return `text` as a C string literal, quotes included."""
    plain = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "?": "\\?"}  # no trigraphs
    escaped = "".join(
        plain.get(chr(byte)) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in text.encode()
    )
    return f'"{escaped}"'


def _seal(stamp: Mapping[str, Any], body: str) -> str:
    return sha256_text(canonical_json(stamp) + body)


def _rows(config: KernelConfig, abi: int) -> str:
    tables = (config.arch_row, config.variant_row, config.layout_row, config.family_row)
    return f"{config!r} {abi} {[_row(row) for row in tables]}"


@functools.cache
def _row(row: Any) -> str:
    return canonical_json(dataclasses.asdict(row))


@functools.cache
def _module_digest() -> str:
    texts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("codegen.py", "describe.py")]
    return sha256_text(canonical_json(texts))


def _place(error: BaseException, template: Path) -> str:
    """Return template:line of the deepest template frame of a traceback."""
    place, trace = str(template), error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if Path(file).is_relative_to(template.parent):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
