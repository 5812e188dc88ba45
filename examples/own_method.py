"""A method of your own: asynchronous averaging whose weight falls with staleness, beside FedAsync and FedAvg.

Run it with `python examples/own_method.py`; `fedasmu check own_method:Gentle` in this folder asks more of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fedasmu import (
    Aggregate,
    Aggregator,
    Algorithm,
    Experiment,
    Federation,
    Learner,
    Memory,
    Model,
    Pace,
    Periodic,
    Report,
    Result,
    Session,
    Task,
    Train,
    Upload,
    Workload,
)


class Mixing(Aggregator):
    """w <- w + rate / staleness * (w_i - w)"""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        weight = self.rate / upload.staleness
        return Aggregate(current.vector + weight * (upload.report.vector - current.vector), [weight])


class PlainSGD(Learner):
    """One command: all steps of the task. A longer session yields more of them, and may fetch a fresh model between."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        trained = yield Train(task.model.vector, range(work.steps), task.lr)
        return Report(trained.vector, work.examples, trained.loss)


class Gentle(Algorithm):
    """Uploads are mixed in by their staleness."""

    kind = "asynchronous"
    name: str = "gentle"
    rate: float = Field(0.8, gt=0, le=1, description="the weight of a fresh upload")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Mixing(self.rate)

    def learner(self) -> Learner:
        return PlainSGD()


def main(folder: Path) -> dict[str, Result]:
    small = {"data": {"name": "fashion-mnist-small"}, "model": "softmax", "fleet": {"devices": 20}}
    rest = {"pacing": {"max_in_flight": 6}, "local": {"epochs": 1, "lr": 0.05}, "stop": {"uploads": 60}}
    methods = {"gentle": Gentle(rate=0.7), "fedasync": "fedasync", "fedavg": "fedavg"}
    return {
        name: Experiment({**small, **rest, "algorithm": method}).run(folder / name) for name, method in methods.items()
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for one in main(Path(place)).values():
            print(one)
