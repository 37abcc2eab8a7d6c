"""Why two keys differ: their inputs compared field by field, their sources line by line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

ABSENT = "(absent)"


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted path, JSON text) of every leaf; lists of plain values are one leaf."""
    if isinstance(value, dict) and (value or not path):
        for name in sorted(value):
            yield from flatten(value[name], f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(x, (dict, list)) for x in value):
        for i, x in enumerate(value):
            yield from flatten(x, f"{path}[{i}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (dotted path, old, new) of every leaf that differs; ``(absent)`` where one side lacks it."""
    left, right = dict(flatten(old)), dict(flatten(new))
    paths = sorted(left.keys() | right.keys())
    return [
        (path, left.get(path, ABSENT), right.get(path, ABSENT)) for path in paths if left.get(path) != right.get(path)
    ]


def source_diff(old: str, new: str, old_label: str = "old", new_label: str = "new") -> str:
    """Return the unified diff of two sources, empty where they are equal."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_label, new_label, lineterm="")
    return "\n".join(lines)


def explain_key(manifest: dict[str, Any]) -> str:
    """Return what a key was made of, one leaf a line."""
    lines = [f"key {manifest['key']}", f"  {manifest['arch']}/{manifest['name']}"]
    lines += [f"  {path} = {_shorten(text)}" for path, text in flatten(manifest["inputs"])]
    if resources := resource_lines(manifest):
        lines += ["what came out of it takes", *(f"  {line}" for line in resources)]
    return "\n".join(lines)


def resource_lines(manifest: dict[str, Any]) -> list[str]:
    """Return what a kernel takes of its device, an entry a line: registers, shared memory and the like."""
    build = manifest.get("build")
    resources = build.get("resources") if isinstance(build, dict) else None
    if not isinstance(resources, dict) or not resources:
        return []
    entries = {name: value for name, value in resources.items() if isinstance(value, dict)} or {"": resources}
    return [
        f"{name}: " * bool(name) + ", ".join(f"{figure.replace('_', ' ')} {value}" for figure, value in entry.items())
        for name, entry in entries.items()
    ]


def explain_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return why two objects have different keys, from their manifests."""
    found = differences(old["inputs"], new["inputs"])
    lines = [f"- {old['key']} {old['arch']}/{old['name']}", f"+ {new['key']} {new['arch']}/{new['name']}"]
    if not found:
        return "\n".join([*lines, "the inputs are equal"])
    for path, before, after in found:
        if "\\n" in before or "\\n" in after:
            lines.append(f"{path} differs: see the source below")
        else:
            lines += [f"{path}:", f"  - {before}", f"  + {after}"]
    old_source, new_source = (str(m.get("source", m["inputs"].get("source", ""))) for m in (old, new))
    diff = source_diff(old_source, new_source, old["key"][:12], new["key"][:12])
    return "\n".join([*lines, diff] if diff else lines)


def _shorten(text: str, width: int = 160) -> str:
    lines = text.count("\\n")
    if lines or len(text) > width:
        return f"{text[:60]}… ({len(text)} characters)"
    return text
