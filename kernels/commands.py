"""The commands of ``./mill``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmill.errors import GemmillError, UnsupportedError
from gemmill.streams import prepare_streams

from kernels.arguments import Options, UsageError, help_text, parse
from kernels.interrupt import Interrupted, catch_signals, reader_gone
from kernels.paths import CHECKOUT

if TYPE_CHECKING:
    from kernels.store import Store

OK, FAILED, USAGE = 0, 1, 2

_GRACE = 1.0  # seconds that threads have to remove their temporary files after a signal


def main(args: Sequence[str]) -> int:
    """Run one command line and return the exit status."""
    catch_signals()
    prepare_streams()
    try:
        # `mill` goes to the checkout; paths on the command line are meant from where the caller stood.
        options = parse(args, Path(os.environ.get("MILL_CWD") or Path.cwd()))
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"mill: {error}\nmill: ./mill help lists commands and arguments", file=sys.stderr)
        return USAGE
    except GemmillError as error:
        print(f"mill: {error}", file=sys.stderr)
        return FAILED
    except Interrupted as stop:
        return stop.status
    except BrokenPipeError:
        return reader_gone().status
    except OSError as error:
        print(f"mill: {error}", file=sys.stderr)
        return FAILED


def build(options: Options) -> int:
    """Run the tasks selected."""
    from doit.cmd_base import NamespaceTaskLoader  # type: ignore[import-untyped]
    from doit.doit_cmd import DoitMain, set_var  # type: ignore[import-untyped]

    from kernels.graph import Graph

    graph = Graph(options)
    graph.check_backends()

    class Loader(NamespaceTaskLoader):  # type: ignore[misc]
        """Loads dodo.py with our graph."""

        def setup(self, opt_values: dict[str, Any]) -> None:
            set_var("graph", graph)
            import dodo

            self.namespace = vars(dodo)

    # No configuration files: what they could say, dodo.py says. doit's sqlite3 is replaced by a tolerant one.
    doit = DoitMain(Loader(), config_filenames=(), extra_config={"BACKEND": {"sqlite3": "kernels.database:Database"}})
    try:
        status: int = doit.run(["run"])
    except Interrupted:
        graph.wait(_GRACE)
        raise
    if graph.unwritten:
        raise graph.unwritten
    return OK if status == 0 else FAILED


def list_kernels(options: Options) -> int:
    """Print every selected kernel and where it stands."""
    from kernels.graph import Graph
    from kernels.status import describe

    graph = Graph(options)
    unbuildable: dict[str, None] = {}
    print(f"{'state':<10} {'key':<12} kernel")
    for config in graph.selection.find(options.words):
        state, key = describe(graph.build, config)
        print(f"{state:<10} {key[:12]:<12} {config.id}")
        if not key:
            unbuildable.setdefault(config.arch)
    sys.stdout.flush()
    for arch in unbuildable:
        try:
            graph.build.toolchain(arch)
        except UnsupportedError as error:
            print(f"mill: {error}", file=sys.stderr)
    return OK


def explain(options: Options) -> int:
    """Print what a kernel's key is made of and why it would be rebuilt; of two, what differs."""
    from gemmill.explain import explain_difference, explain_key

    from kernels.graph import Graph
    from kernels.status import find_manifest, published_manifest

    if not 1 <= len(options.words) <= 2:
        raise UsageError("explain takes a kernel's name or key, or two of them to compare")
    graph = Graph(options)
    found = [find_manifest(graph, word) for word in options.words]
    if len(found) == 2:
        print(explain_difference(*found))
        return OK
    print(explain_key(found[0]))
    published = published_manifest(graph, found[0])
    if published and published["key"] != found[0]["key"]:
        print("\nThe index names another key; compiling would replace it. What differs:\n")
        print(explain_difference(published, found[0]))
    return OK


def verify(options: Options) -> int:
    """Check every object and every index entry; move broken objects to quarantine."""
    from kernels.sweep import verify

    store = _store(options)
    found = verify(store)
    for key, reason in found.broken:
        print(f"broken, moved to quarantine: {key[:12]} {reason}")
    for name, reason in found.dangling:
        print(f"not usable until it is built again: {name} {reason}")
    print(f"{found.checked} objects checked in {store.root}: {len(found.broken)} broken")
    return OK if found.ok else FAILED


def gc(options: Options) -> int:
    """Remove objects that the index does not name."""
    from kernels.sweep import gc

    store = _store(options)
    swept = gc(store, options.max_size)
    print(
        f"{swept.objects} objects removed from {store.root}, {_mebibytes(swept.freed)} freed; "
        f"{swept.kept} kept, {_mebibytes(swept.kept_bytes)}"
    )
    if options.max_size is not None and swept.kept_bytes > options.max_size:
        print(f"more than {_mebibytes(options.max_size)} is left: the index names all of it")
    return OK


def help_(options: Options) -> int:
    """Print the arguments."""
    print(help_text())
    return OK


def clean(options: Options) -> int:
    """Remove what codegen and the memos left; the cache stays."""
    for path in (CHECKOUT.generated, CHECKOUT.build / "memo", *CHECKOUT.build.glob("doit.sqlite3*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return OK


def _store(options: Options) -> Store:
    from kernels.store import Store

    return Store(options.cache or CHECKOUT.cache, lambda text: print(text, file=sys.stderr))


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


_COMMANDS: dict[str, Callable[[Options], int]] = {
    "build": build,
    "list": list_kernels,
    "explain": explain,
    "verify": verify,
    "gc": gc,
    "clean": clean,
    "help": help_,
}
