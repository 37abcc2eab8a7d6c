"""Which kernels and tasks a command line means.

Only what is selected, and what that needs, becomes a task of the graph, so doit runs all that it is given.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Iterable

from gemmill.arch import find_arch, host_archs
from gemmill.device import why_arch_not_here

from kernels.arguments import COMMANDS, Options, UsageError
from kernels.catalogue import Catalogue
from kernels.config import KernelConfig
from kernels.simulator import is_simulated

STAGES = ("codegen", "compile", "selftest")


class Selection:
    """The kernels and tasks that a command line selects from a catalogue.

    Parameters
    ----------
    options : Options
    catalogue : Catalogue

    Attributes
    ----------
    configs : list of KernelConfig
        The kernels of the archs, variants, families, layouts and output types asked for.
    tasks : dict of str to list of KernelConfig
        The kernels of each stage's tasks.
    skipped : dict of str to str
        Archs whose selftests were left out because this machine can't run them, and why.

    Raises
    ------
    UsageError
        If something asked for does not exist; the text says what comes near.
    """

    def __init__(self, options: Options, catalogue: Catalogue) -> None:
        self.options, self.catalogue = options, catalogue
        self.skipped: dict[str, str] = {}
        self.tasks = self._select(options.words if options.command == "build" else ())

    @functools.cached_property
    def configs(self) -> list[KernelConfig]:
        return self._configs(self.options.arch or (host_archs()[0].name,))

    def find(self, words: Iterable[str]) -> list[KernelConfig]:
        """Return the kernels that names or patterns mean; all selected ones when there are none."""
        patterns = list(words)
        found = {config.id: config for word in patterns for _, config in self._match(word)}
        return list(found.values()) if patterns else self.configs

    def _configs(self, archs: Iterable[str]) -> list[KernelConfig]:
        options = self.options
        configs = [
            config
            for arch in archs
            for config in self.catalogue.configs(
                arch, options.variant or None, options.family or None, options.layout or None, options.out
            )
        ]
        if not configs:
            asked = " ".join(
                f"{name}={','.join(getattr(options, name))}"
                for name in ("arch", "variant", "family", "layout", "out")
                if getattr(options, name)
            )
            rows = "; ".join(f"{family}: {', '.join(names)}" for family, names in self.catalogue.layouts.items())
            outs = ", ".join(dict.fromkeys(out for row in self.catalogue.geometry for out in row.out))
            raise UsageError(
                f"no kernel has {asked}; layouts by family are {rows}; output types in the catalogue are {outs}, and "
                "others come from `out` of a [[geometry]] there"
            )
        return configs

    def _select(self, words: Iterable[str]) -> dict[str, list[KernelConfig]]:
        wanted: dict[str, dict[str, KernelConfig]] = {stage: {} for stage in STAGES}
        for word in words:
            for stage, config in self._match(word):
                wanted[stage][config.id] = config
        if not any(wanted.values()):
            everything = {config.id: config for config in self.configs}
            runnable = {i: c for i, c in everything.items() if not self._is_skipped(c.arch)}
            wanted = {"codegen": everything, "compile": everything, "selftest": runnable}
        wanted["compile"] = wanted["compile"] | wanted["selftest"]
        wanted["codegen"] = wanted["codegen"] | wanted["compile"]
        return {stage: list(configs.values()) for stage, configs in wanted.items()}

    def _is_skipped(self, arch: str) -> bool:
        if arch not in self.skipped:
            reason = why_arch_not_here(find_arch(arch))
            if reason is None or is_simulated(arch, self.options.provider):
                return False
            self.skipped[arch] = reason
        return True

    def _match(self, word: str) -> list[tuple[str, KernelConfig]]:
        """Return the (stage, kernel) pairs that a task, a name or a pattern means."""
        may_name_arch = "/" in word and not self.options.arch
        # This machine's arch comes first, where the catalogue has it.
        is_here = not may_name_arch or host_archs()[0].name in self.catalogue.archs
        configs = self.configs if is_here else self._configs(self.catalogue.archs)
        found = _matches(word, configs)
        if not found and may_name_arch:
            found = _matches(word, self._configs(self.catalogue.archs))
        if found:
            return found
        archs = ", ".join(dict.fromkeys(config.arch for config in configs))
        near = _near(word, [f"{stage}:{config.id}" for stage in STAGES for config in configs])
        hint = "\n  ".join(["near are", *near] if near else ["tasks look like", f"selftest:{configs[0].id}"])
        raise UsageError(f"nothing matches {word!r} among {len(configs)} kernels of {archs}; {hint}")


def _matches(word: str, configs: list[KernelConfig]) -> list[tuple[str, KernelConfig]]:
    if word in STAGES:
        return [(word, config) for config in configs]
    is_match = re.compile(fnmatch.translate(word)).match
    found = [(stage, config) for config in configs for stage in STAGES if is_match(f"{stage}:{config.id}")]
    # Without a stage, the whole chain.
    return found or [("selftest", config) for config in configs if is_match(config.name) or is_match(config.id)]


def _near(word: str, tasks: list[str]) -> list[str]:
    """Return what somebody who typed `word` may have meant: a word of ours, or tasks with parts like its parts."""
    near = difflib.get_close_matches(word, [*COMMANDS, *STAGES, *tasks], 3, 0.75)
    if near:
        return near
    pattern = word
    for part in re.split(r"[*?\[\]:/]+", word):
        if part and not any(part in task for task in tasks):
            # Pieces of task names, as many words long.
            length = part.count("_") + 1
            pieces = {
                "_".join(words[i : i + length])
                for words in (re.split("[:/_]", task) for task in tasks)
                for i in range(len(words) - length + 1)
            }
            closest = difflib.get_close_matches(part, sorted(pieces), 1)
            if not closest:
                return []
            pattern = pattern.replace(part, closest[0])
    return [] if pattern == word else [pattern, *fnmatch.filter(tasks, f"*{pattern}*")[:2]]
