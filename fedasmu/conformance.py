"""What every method must do, ours and a user's own: `fedasmu check` and the tests ask the same of it.

Sixty uploads of ten unequal devices that hold two clouds of points in 20 dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedasmu.data.federated import FederatedData
from fedasmu.events import Event, Measured
from fedasmu.experiment import Experiment
from fedasmu.run.result import Result
from fedasmu.server.desk import Desk
from fedasmu.storage.record import SAME_BYTES

UPLOADS = 60
PARTIAL = 23  # a prime: whatever the buffer or the cohort, one is begun and not full


def blobs(devices: int = 10, count: int = 400) -> FederatedData:
    """Two Gaussian clouds, easy to tell apart: the best possible classifier has an accuracy of 0.999."""
    generator = torch.Generator().manual_seed(7)
    targets = torch.arange(count) % 2
    inputs = torch.randn(count, 20, generator=generator) + (2 * targets[:, None] - 1) * 0.7
    cut = count * 3 // 4
    order = torch.randperm(cut, generator=generator)
    # Unequal shards with partial batches: device d holds every index that is d modulo the number of devices, cut short.
    shards = [order[device::devices][: 20 + device] for device in range(devices)]
    return FederatedData.of((inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:]), shards)


def softmax() -> nn.Module:
    return nn.Linear(20, 2)


def network() -> nn.Module:
    """With hidden units to drop, features to contrast, and statistics that are no gradient's business."""
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def outputs(result: Result) -> dict[str, bytes]:
    """The files that must be the same bytes whenever the seed is the same."""
    return {name: (result.directory / name).read_bytes() for name in SAME_BYTES}


class Trial:
    """One method, and runs of it in directories of their own."""

    def __init__(self, algorithm: Mapping[str, Any], folder: Path) -> None:
        self.algorithm, self.folder, self.count = dict(algorithm), folder, 0

    def experiment(self, model: Callable[[], nn.Module], data: FederatedData, **changes: Any) -> Experiment:
        table = {
            "fleet": {"devices": 10},
            "pacing": {"max_in_flight": 5, "period": 1.0},
            # With 15, no device has a last batch of one example, which BatchNorm could not take.
            "local": {"epochs": 2, "batch": 15, "lr": 0.1, "decay": 1.0},
            "algorithm": self.algorithm,
            "evaluate": {"every": 5, "targets": [0.9]},
            "stop": {"uploads": UPLOADS},
        }
        return Experiment(table, changes, model=model, data=data)

    def run(
        self,
        model: Callable[[], nn.Module] = network,
        data: FederatedData | None = None,
        workers: Any = "inline",
        **changes: Any,
    ) -> Result:
        self.count += 1
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        experiment = self.experiment(model, data or blobs(), **dotted)
        return experiment.run(self.folder / f"run-{self.count}", workers=workers)


def learned(result: Result) -> None:
    accuracy, loss = result.curve["accuracy"][-1], result.curve["loss"][-1]
    assert accuracy > 0.9, f"its last accuracy is {accuracy:.3f}; 0.9 is expected"
    assert math.isfinite(loss), f"its last loss is {loss}"


def converges(trial: Trial) -> None:
    """It learns a convex problem."""
    learned(trial.run(softmax))


def repeats(trial: Trial) -> None:
    """It gives the same bits with two worker processes as with none."""
    once, again = (trial.run(workers=workers) for workers in ("inline", 2))
    assert outputs(once) == outputs(again), "the files differ: is something random, or kept outside of `memory`?"


def survives(trial: Trial) -> None:
    """It goes on when devices die."""
    result = trial.run(fleet__dropout=0.3)
    assert result.summary["lost"] > 0, "no task was lost: the method never started enough of them"
    learned(result)


def refuses(trial: Trial) -> None:
    """It goes on when uploads are refused because they are not finite."""
    data = blobs()
    data.train.inputs[data.shards[3]] = torch.nan
    result = trial.run(softmax, data)
    assert result.summary["refused"] > 0, "nothing was refused: does the method change what a device reports?"
    learned(result)


def keeps_time(trial: Trial) -> None:
    """It runs without training, to study the order of events."""
    result = trial.run(timing_only=True)
    assert result.summary["uploads"] >= UPLOADS, f"it ended after {result.summary['uploads']} uploads"


def flushes(trial: Trial) -> None:
    """It can end with a buffer or a round that is not full."""
    result = trial.run(stop__uploads=PARTIAL)
    weights = result.state_dict.values()
    assert all(bool(torch.isfinite(one).all()) for one in weights), "the final model is not finite"
    assert result.summary["uploads"] >= PARTIAL, f"it ended after {result.summary['uploads']} uploads"


class Killed(BaseException):
    """As a kill: nothing catches it."""


def resumes(trial: Trial) -> None:
    """Killed in the middle and resumed, it ends in the same bytes."""

    def kill(desk: Desk, line: Event | Measured) -> None:
        if desk.server.counters.received == PARTIAL:
            raise Killed

    changes = {"fleet.dropout": 0.1, "checkpoint_seconds": 1e-9}  # one after every event, however fast the machine is
    experiment, directory = trial.experiment(network, blobs(), **changes), trial.folder / "killed"
    with suppress(Killed):
        experiment.run(directory, observe=kill)
    assert not (directory / "summary.json").exists(), f"it never received {PARTIAL} uploads"
    resumed = experiment.run(directory, resume=True)
    whole = trial.run(fleet__dropout=0.1)
    assert outputs(resumed) == outputs(whole), "the files differ: do `state` and `restore` keep all that changes?"


CHECKS: tuple[Callable[[Trial], None], ...] = (
    converges,
    repeats,
    resumes,
    flushes,
    survives,
    refuses,
    keeps_time,
)
