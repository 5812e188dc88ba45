"""The study of the guard writes a table for each method, each in its own place."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from helpers.repository import ROOT

PAGE = """before
<!-- benchmarks/guard.py --method fedasmu writes this -->
of one method
<!-- to here -->
between
<!-- benchmarks/guard.py --method fedasmu-r writes this -->
of the other
<!-- to here -->
after
"""


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = import_module("guard")
    monkeypatch.delitem(sys.modules, "guard")
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    module.PAGE.write_text(PAGE)
    return module


def finished(folder: Path, *accuracies: float) -> None:
    for seed, accuracy in enumerate(accuracies):
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        (place / "summary.json").write_text("{}")
        (place / "config.toml").write_text("")
        (place / "metrics.csv").write_text(f"time,version,accuracy\n1.0,1,{accuracy}\n")


def written(study: Any, monkeypatch: pytest.MonkeyPatch, method: str, out: Path) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["guard.py", "--table", "--method", method, "--out", str(out)])
    study.main()
    return str(study.PAGE.read_text()).splitlines()


@pytest.mark.parametrize("method", ["fedasmu", "fedasmu-r"])
def test_a_method_has_its_own_place(
    study: Any, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(tmp_path / f"{method}-honest" / "off", 0.5, 0.7)
    finished(tmp_path / f"{method}-honest" / "on", 0.6, 0.6)
    finished(tmp_path / method / "on-kind-noise-share-0.2", 0.25)
    lines = written(study, monkeypatch, method, tmp_path)
    assert f"`{method}`, 0 to 2 seeds; nobody lies: 0.600 ± 0.141 / 0.600 ± 0.000." in lines
    assert "| 20% | ? / ? | ? / ? | ? / 0.250 | ? / ? |" in lines
    kept, gone = ("of the other", "of one method") if method == "fedasmu" else ("of one method", "of the other")
    assert kept in lines
    assert gone not in lines
    assert [line for line in lines if line in ("before", "between", "after")] == ["before", "between", "after"]
    assert written(study, monkeypatch, method, tmp_path) == lines, "again, and nothing changes"


def test_a_method_without_a_place_changes_nothing(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="one place for the table of fedavg, not 0"):
        written(study, monkeypatch, "fedavg", tmp_path)
    assert study.PAGE.read_text() == PAGE


def test_the_page_has_a_place_for_both() -> None:
    page = (ROOT / "docs" / "explanation" / "guard.md").read_text()
    assert [page.count(f"guard.py --method {method} writes this -->") for method in ("fedasmu", "fedasmu-r")] == [1, 1]
