"""The task graph: one chain codegen → compile → selftest a kernel. ``./mill`` runs it; so does doit itself."""

from kernels.graph import graph_of_command_line

GRAPH = graph_of_command_line()
DOIT_CONFIG = GRAPH.doit_config()


def task_codegen():
    """Render a kernel's source from its template."""
    for config in GRAPH.selected["codegen"]:
        yield GRAPH.codegen_task(config)


def task_compile():
    """Build a kernel's library and publish it into the cache."""
    for config in GRAPH.selected["compile"]:
        yield GRAPH.compile_task(config)


def task_selftest():
    """Run a kernel in a child process and record whether its results are right."""
    for config in GRAPH.selected["selftest"]:
        yield GRAPH.selftest_task(config)
