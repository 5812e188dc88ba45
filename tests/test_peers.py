"""The benchmark against other frameworks: ours does the work that is asked of all, and who does not is found out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from fedasmu.models import build
from helpers.repository import ROOT


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    return importlib.import_module("run")


def test_the_model_of_all_is_ours(run: Any) -> None:
    theirs = importlib.import_module("work").lenet5().state_dict()
    ours = build("lenet5", shape=(1, 28, 28), classes=10, seed=0).state_dict()
    assert [tensor.shape for tensor in theirs.values()] == [tensor.shape for tensor in ours.values()]


def test_ours_does_the_work(run: Any) -> None:
    contender = run.Contender(run.OURS, 1, engine="native")
    load = run.Workload(1, 10, 10)
    options = ["--work", "w2", "--images", "10", "--rounds", "2"]
    figures = run.run(contender, Path(sys.executable), options, load, 2)
    assert figures.rate > 0
    assert figures.start > 0
    assert figures.memory > 50  # megabytes: torch alone has more


def test_who_trains_less_is_refused(run: Any) -> None:
    load, told = run.Workload(1, 10, 10), [{"round": 1.0}, {"round": 2.0}]
    run.check(run.Contender("pfl", 1), [*told, {"steps": 15}, {"steps": 5}], load, 2)
    with pytest.raises(run.Failed, match=r"pfl, 1: 2 rounds of 2, 19 steps of 20"):
        run.check(run.Contender("pfl", 1), [*told, {"steps": 19}], load, 2)
    with pytest.raises(run.Failed, match=r"pfl, 1: 2 rounds of 3, 30 steps of 30"):
        run.check(run.Contender("pfl", 1), [*told, {"steps": 30}], load, 3)
