"""Imports point one way, from the command line down to the vocabulary."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedasmu"
ORDER = (
    *("protocol", "events", "vector", "roster", "algorithms", "session", "server", "pools", "record", "meter", "desk"),
    *("simulation", "build", "experiment", "cli"),
)


def imported(path: Path) -> set[str]:
    """The modules of ours that this file imports, wherever in it, as dotted names without the package's."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("fedasmu.") for name in found if name.startswith("fedasmu.")}


def files(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).glob("*.py")) or [PACKAGE / f"{layer}.py"]


def is_part(module: str, layer: str) -> bool:
    return module == layer or module.startswith(layer + ".")


@pytest.mark.parametrize(("place", "layer"), list(enumerate(ORDER)))
def test_a_layer_imports_only_layers_below_it(place: int, layer: str) -> None:
    for path in files(layer):
        above = {module for module in imported(path) for other in ORDER[place + 1 :] if is_part(module, other)}
        assert not above, f"{path.name} imports {sorted(above)}"


def test_the_vocabulary_imports_nothing_of_ours() -> None:
    assert imported(PACKAGE / "protocol.py") == set()


@pytest.mark.parametrize("path", files("algorithms"), ids=lambda path: path.stem)
def test_algorithms_know_no_clock_no_pool_and_no_server(path: Path) -> None:
    for other in ("simulation", "server", "record", "experiment", "training", "config"):
        assert not any(is_part(module, other) for module in imported(path)), f"{path.name} imports {other}"


def test_the_server_does_no_io() -> None:
    tree = ast.parse((PACKAGE / "server.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"time", "socket", "threading", "asyncio", "pathlib", "os", "random"}


def test_help_needs_no_torch() -> None:
    """Importing torch takes seconds; `fedasmu --help` answers in about half of one."""
    code = "import sys, fedasmu.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0
