"""What a device says in its report is not believed: no method raises, and none spoils the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedasmu.algorithms import NAMES, settings
from fedasmu.events import Verdict
from fedasmu.protocol import Model, Report
from fedasmu.schedule import Periodic
from fedasmu.server.core import Server
from fedasmu.server.inspection import LARGEST
from fedasmu.vector import Layout
from helpers.uploads import federation

BIG, NAN, INF = 10**400, math.nan, math.inf
MERGED = {"beta": 0.3, "merged_after": 1, "slot": 1, "reward": 0.1, "gamma": 1.0, "upsilon": 1.0, "epochs": 2}
NO_VALUES: dict[str, list[Any]] = {
    "beta": ["x", None, NAN, INF, -1, 7, BIG, [], torch.ones(3), True],
    "merged_after": ["x", None, NAN, 0, -3, BIG, 1.5],
    "slot": ["x", None, -1, 0, BIG, NAN],
    "reward": ["x", None, NAN, INF, -1e30, BIG, []],
}
NOTES: list[Any] = [
    *({}, None, [], "x", {"path": 0}, {"path": 1e-300}, {"gradient": "x"}, {"gradient": torch.zeros(1)}),
    *({"gradient": torch.full((10,), NAN)}, {"gradient": torch.zeros(10, dtype=torch.int64)}),
    *({**MERGED, name: value} for name, values in NO_VALUES.items() for value in values),
    {"beta": 0.3},
]
EXAMPLES: list[Any] = ["x", None, NAN, INF, -5, 0, 10**9, BIG]
LOSSES: list[Any] = ["x", None, NAN, INF, -1e38, BIG]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


SIZE = Layout.of(network()).size
GRADIENT = {"gradient": torch.zeros(SIZE)}  # where it is wanted
HONEST = Report(torch.linspace(-1, 2, SIZE), 10, 0.5, GRADIENT)


def server(name: str, directory: Path) -> Server:
    known = federation(directory, module=network())
    aggregator, start = settings({"name": name}).aggregator(known), Model(0, torch.linspace(-1, 1, SIZE))
    return Server(start, Periodic(2, 2), aggregator, known.devices, seed=0, learning_rate=lambda uploads: 0.1)


def fed(here: Server, report: Report) -> Verdict:
    """A task whose device gets a fresh model, since another one was quicker, ends in this report."""
    task, other = here.tick()
    here.receive(other.id, other.device, HONEST)
    assert here.fetch(task.id, task.device) is not None
    return here.receive(task.id, task.device, report).verdict


@pytest.mark.parametrize("name", NAMES)
def test_no_report_raises_or_spoils_the_model(name: str, tmp_path: Path) -> None:
    here = server(name, tmp_path)
    vector = HONEST.vector
    reports = [Report(vector, 10, 0.5, note) for note in NOTES]
    reports += [Report(vector, examples, 0.5, MERGED | GRADIENT) for examples in EXAMPLES]
    reports += [Report(vector, 10, loss, MERGED | GRADIENT) for loss in LOSSES]
    for report in (report for report in reports for _ in range(2)):  # the second meets what the first has left behind
        fed(here, report)
        assert torch.isfinite(here.model.vector).all()
        assert here.model.vector.abs().max() <= 100
    assert fed(here, Report(vector, 10, 0.5, MERGED | GRADIENT)) is Verdict.ACCEPTED


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_upload_that_is_taken_leaves_a_finite_model(name: str, tmp_path: Path) -> None:
    here = server(name, tmp_path)
    for sign in (1, -1, 1, -1, 1, -1):
        report = Report(torch.full((SIZE,), sign * LARGEST), 10, 0.5, MERGED | GRADIENT)
        assert fed(here, report) in (Verdict.ACCEPTED, Verdict.REFUSED)
        assert torch.isfinite(here.model.vector).all()
    beyond = Report(torch.full((SIZE,), 3e38), 10, 0.5, MERGED | GRADIENT)
    assert fed(here, beyond) is Verdict.REFUSED


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "moon", "port"])
def test_examples_are_the_rosters(name: str, tmp_path: Path) -> None:
    models = []
    for claimed in (10, 10**9):
        here = server(name, tmp_path / str(claimed))
        here.schedule = Periodic(2, 2, 2)
        tasks = here.tick()
        for task, claim, shift in zip(tasks, (10, claimed), (1.0, -1.0), strict=True):
            here.receive(task.id, task.device, Report(task.model.vector + shift, claim, 0.5))
        models.append(here.model.vector)
    assert here.model.version == 1
    assert torch.equal(*models)
