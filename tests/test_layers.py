"""Imports point one way, from the command line down to the vocabulary."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.repository import ROOT

PACKAGE = ROOT / "fedasmu"
FLOORS = {
    "words": "errors seeding imports section measure protocol vector schedule roster events session",
    "disk": "system encoding data models storage",
    "compute": "algorithms engines training pools",
    "server": "server",
    "settings": "settings",
    "run": "run",
    "drivers": "simulation network",
    "looking": "report experiment conformance study watch",
    "keyboard": "commands cli",
}
UPWARD = {"run": {"report"}}  # Result.plot and its like import what they need when they are called
ORDER = [name for names in FLOORS.values() for name in names.split()]  # a name imports only names before it


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
    return sorted((PACKAGE / layer).rglob("*.py")) or [PACKAGE / f"{layer}.py"]


def is_part(module: str, layer: str) -> bool:
    return module == layer or module.startswith(layer + ".")


def test_every_name_of_the_package_has_its_place() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert set(ORDER) == packages | modules, "a new name belongs on one of the FLOORS above"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize(("place", "layer"), list(enumerate(ORDER)), ids=ORDER)
def test_a_name_imports_only_names_before_it(place: int, layer: str) -> None:
    for path in files(layer):
        allowed = UPWARD.get(layer, set())
        others = [other for other in ORDER[place + 1 :] if other not in allowed]
        above = {module for module in imported(path) for other in others if is_part(module, other)}
        assert not above, f"{path.name} imports {sorted(above)}"


LINES = 250  # of a module, at most


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert not {name for name, length in lengths.items() if length > LINES}


def test_a_driver_needs_no_other_driver() -> None:
    for path in files("network"):
        if path.stem == "rehearsal":  # compares both
            continue
        assert not any(is_part(module, "simulation") for module in imported(path)), path.name


def test_what_both_drivers_share_has_no_clock_and_no_socket() -> None:
    for name in ("session", "server/desk", "server/meter", "events", "encoding/codec", "roster"):
        assert not outside(PACKAGE / f"{name}.py") & {"time", "socket", "threading", "asyncio", "random"}, name


def outside(path: Path) -> set[str]:
    """The modules that this file imports, ours and others."""
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest finds a module by its name alone, since the folders are no packages."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_the_vocabulary_imports_nothing_of_ours() -> None:
    assert imported(PACKAGE / "protocol.py") == set()


@pytest.mark.parametrize("path", files("algorithms"), ids=lambda path: path.stem)
def test_algorithms_know_no_clock_no_pool_and_no_server(path: Path) -> None:
    for other in ("simulation", "server", "storage.record", "experiment", "training", "settings"):
        assert not any(is_part(module, other) for module in imported(path)), f"{path.name} imports {other}"


def test_the_server_does_no_io() -> None:
    forbidden = {"time", "socket", "threading", "asyncio", "pathlib", "os", "random"}
    assert not outside(PACKAGE / "server/core.py") & forbidden


def test_help_needs_no_torch() -> None:
    """Importing torch takes seconds; `fedasmu --help` answers in about half of one."""
    code = "import sys, fedasmu.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0
