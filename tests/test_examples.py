"""Every file in examples/ runs, and shows what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from helpers.repository import ROOT

EXAMPLES = ROOT / "examples"


def example(name: str, folder: Path) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](folder)


def test_every_example_is_listed_and_tested() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"own_data", "own_method", "measured_fleet"}
    assert all(f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text() for name in names)


def test_own_data(tmp_path: Path) -> None:
    result = example("own_data", tmp_path)
    assert result.config["fleet"]["devices"] == 12
    assert result.curve["accuracy"][-1] > max(0.75, result.curve["accuracy"][0])


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = example("own_method", tmp_path)
    assert all(one.curve["accuracy"][-1] > one.curve["accuracy"][0] + 0.2 for one in results.values())
    staleness = {line["staleness"] for line in results["gentle"].events if line["event"] == "upload"}
    assert len(staleness) > 1


def test_measured_fleet(tmp_path: Path) -> None:
    results = example("measured_fleet", tmp_path)
    assert results["fedasync"].summary["mean_staleness"] > 1.5
    assert results["fedasync"].summary["virtual_seconds"] < results["fedavg"].summary["virtual_seconds"]
