"""Devices that measure: each tells how good the model that it was sent is on examples that it does not train on."""

from __future__ import annotations

from dataclasses import replace

from fedasmu.algorithms.base import Learner
from fedasmu.protocol import Evaluate, Memory, Report, Session, Task, Workload


class Measuring(Learner):
    """Any method's device half, which first measures the model of its task."""

    def __init__(self, learner: Learner) -> None:
        self.inner = learner

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        measured = (yield Evaluate(task.model.vector)) if work.held else None
        report: Report = yield from self.inner.train(task, work, memory)
        return replace(report, measured=measured)
