"""Writes docs/reference/api.md from the docstrings and signatures of the public names: `make api`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import fedasmu

PAGE = Path(__file__).parent / "reference" / "api.md"
HEAD = """# The Python interface

Made from the code by `make api`. All of these names come from `fedasmu` itself, as in `from fedasmu import Experiment`;
`dir(fedasmu)` lists them.
"""
PARTS = {
    "Run, compare, read": (
        "Experiment",
        "FederatedData",
        "Device",
        "Result",
        "load_runs",
        "compare",
        "Comparison",
        "sweep",
        "Sweep",
        "write_report",
        "UserError",
    ),
    "A method of your own": (
        "Algorithm",
        "Aggregator",
        "Learner",
        "Aggregate",
        "Federation",
        "Pace",
        "Periodic",
        "Rounds",
    ),
}
REST = "What server and devices say to each other"


def text() -> str:
    named = {name for names in PARTS.values() for name in names}
    parts = PARTS | {REST: tuple(name for name in fedasmu.__all__ if name not in named)}
    return "\n".join([HEAD, *(f"## {title}\n\n" + "\n".join(map(_entry, names)) for title, names in parts.items())])


def _entry(name: str) -> str:
    thing = getattr(fedasmu, name)
    lines = [f"### {name}", ""]
    if not callable(thing) or isinstance(thing, type(dict[str, Any])):  # a name for a type
        return "\n".join([*lines, f"`{_short(str(thing))}`", "", _after_assignment(name), ""])
    lines += ["```python", f"{name}{_signature(thing)}", "```", "", _described(thing), ""]
    if inspect.isclass(thing):
        lines += _members(thing)
    return "\n".join(lines)


def _members(kind: type) -> list[str]:
    rows = []
    if dataclasses.is_dataclass(kind):
        rows += [
            f"- `{field.name}: {_short(str(field.type))}`{_comment(kind, field.name)}"
            for field in dataclasses.fields(kind)
            if not field.name.startswith("_")
        ]
    for name, member in vars(kind).items():
        inner = member.__func__ if isinstance(member, classmethod) else getattr(member, "func", None) or member
        inner = inner.fget if isinstance(inner, property) else inner
        known = inspect.isfunction(inner) and (inspect.getdoc(inner) or getattr(inner, "__isabstractmethod__", False))
        if name.startswith("_") or not known:
            continue
        is_call = inspect.isfunction(member) or isinstance(member, classmethod)
        said = f": {_described(inner)}" if inspect.getdoc(inner) else ": yours to write"
        rows.append(f"- `{name}{_signature(inner) if is_call else ''}`{said}")
    return [*rows, ""] if rows else []


def _described(thing: Any) -> str:
    """Its docstring, unless a dataclass made it up. In a list, all of it is one paragraph."""
    said = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        return "" if said.startswith(f"{thing.__name__}(") else said
    return " ".join(said.split()) if "." in thing.__qualname__ else said


def _signature(thing: Any) -> str:
    try:
        return _short(str(inspect.signature(thing)))
    except ValueError:
        return "(...)"


def _short(words: str) -> str:
    """Without modules' names, addresses of defaults, and `self`."""
    words = re.sub(r"<function \S*<lambda> at 0x\w+>", "...", words)
    words = re.sub(r"(: |-> )'([^']*)'", r"\1\2", words)
    words = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", words)
    return re.sub(r"\((?:self|cls)(?:, )?", "(", words)


def _comment(kind: type, field: str) -> str:
    found = re.search(rf"^    {field}: [^#\n]*#\s*(.+)$", inspect.getsource(kind), re.MULTILINE)
    return f": {found[1]}" if found else ""


def _after_assignment(name: str) -> str:
    """The docstring below `Name = ...` in its module."""
    module = inspect.getmodule(fedasmu.Task)
    tree = ast.parse(inspect.getsource(module)).body if module else []
    for before, after in itertools.pairwise(tree):
        is_it = isinstance(before, ast.Assign) and any(getattr(target, "id", "") == name for target in before.targets)
        if is_it and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return ""


if __name__ == "__main__":
    PAGE.write_text(text())
