"""The task graph: one chain codegen → compile → selftest a kernel. ``./mill`` runs it; so does doit itself."""

from collections.abc import Iterator
from typing import Any

from kernels.graph import graph_of_command_line

GRAPH = graph_of_command_line()
DOIT_CONFIG = GRAPH.doit_config()


def task_codegen() -> Iterator[dict[str, Any]]:
    """Render a kernel's source from its template."""
    for config in GRAPH.selected["codegen"]:
        yield GRAPH.codegen_task(config)


def task_compile() -> Iterator[dict[str, Any]]:
    """Build a kernel's library and publish it into the cache."""
    for config in GRAPH.selected["compile"]:
        yield GRAPH.compile_task(config)


def task_selftest() -> Iterator[dict[str, Any]]:
    """Run a kernel in a child process and record whether its results are right."""
    for config in GRAPH.selected["selftest"]:
        yield GRAPH.selftest_task(config)
