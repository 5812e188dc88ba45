"""What every method must do. A method is covered by being listed in ALGORITHMS, under each of its names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run, blobs, outputs, settings
from torch import nn

from fedasmu import Experiment, Result
from fedasmu.algorithms import ALGORITHMS
from fedasmu.desk import Desk
from fedasmu.events import Event, Measured

NAMES = [name for method in ALGORITHMS for name in method.names()]
# Sixty uploads are few for a server that steps by a thousandth.
SETTINGS: dict[str, dict[str, Any]] = {"fadas": {"server_lr": 0.05}}

pytestmark = pytest.mark.parametrize("name", NAMES)


def network() -> nn.Module:
    """With hidden units to drop, features to contrast, and statistics that are no gradient's business."""
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def changes(name: str) -> dict[str, Any]:
    # With 15, no device has a last batch of one example, which BatchNorm could not take.
    return {"algorithm": {"name": name, **SETTINGS.get(name, {})}, "local": {"batch": 15}}


def learned(result: Result) -> bool:
    return bool(result.curve["accuracy"][-1] > 0.9) and math.isfinite(result.curve["loss"][-1])


def test_it_converges_on_a_convex_problem(name: str, run: Run) -> None:
    """Softmax regression; the best possible classifier of these points has an accuracy of 0.999."""
    assert learned(run(**changes(name)))


def test_it_gives_the_same_bits_again_on_two_workers(name: str, run: Run) -> None:
    once, again = (run(model=network, **changes(name), workers=workers) for workers in ("inline", 2))
    assert outputs(once) == outputs(again)


def test_it_survives_devices_that_die(name: str, run: Run) -> None:
    result = run(model=network, **changes(name), fleet={"dropout": 0.3})
    assert result.summary["lost"] > 0
    assert learned(result)


def test_it_refuses_bad_uploads_and_goes_on(name: str, run: Run) -> None:
    data = blobs()
    data.train.inputs[data.shards[3]] = torch.nan
    result = run(**changes(name), data=data)
    assert result.summary["refused"] > 0
    assert learned(result)


def test_it_runs_without_training_to_study_its_timing(name: str, run: Run) -> None:
    assert run(model=network, **changes(name), timing_only=True).summary["uploads"] >= 60


class Killed(BaseException):
    pass


def test_killed_and_resumed_it_ends_in_the_same_bytes(name: str, run: Run, tmp_path: Path) -> None:
    def kill(desk: Desk, line: Event | Measured) -> None:
        if desk.server.counters.received == 23:
            raise Killed

    table = changes(name) | {"fleet": {"dropout": 0.1}, "checkpoint_seconds": 0.01}
    own: dict[str, Any] = {"model": network, "data": blobs()}
    with pytest.raises(Killed):
        Experiment(settings(**table), **own).run(tmp_path / "killed", observe=kill)
    assert any((tmp_path / "killed" / "checkpoint").iterdir())
    resumed = Experiment.of_run(tmp_path / "killed", **own).run(tmp_path / "killed", resume=True)
    assert outputs(resumed) == outputs(run(model=network, **table))
