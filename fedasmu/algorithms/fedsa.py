"""Chen, Mao, Ma: FedSA: a staleness-aware asynchronous federated learning algorithm with non-IID data. Future
Generation Computer Systems 120, 2021. Its formulas are not public: this is a reconstruction from its abstract and from
summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from pydantic import Field

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasync import polynomial
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic


def smoothed(mean: float | None, delay: int, memory: float) -> float:
    """An exponential moving average, which starts at its first value"""
    return float(delay) if mean is None else memory * mean + (1 - memory) * delay


def lr_factor(delay: float) -> float:
    """eta_i = eta / sqrt(1 + delay_i)"""
    return float((1 + delay) ** -0.5)


def epoch_factor(delay: float, typical: float) -> float:
    """L_i = L (1 + typical delay) / (1 + delay_i), at most L"""
    return min(1.0, (1 + typical) / (1 + delay))


@dataclass(frozen=True, slots=True)
class FactorsBrief:
    """What a device is told with its task: by what to multiply the recipe's epochs and learning rate."""

    epoch_factor: float
    lr_factor: float


@dataclass(frozen=True, slots=True)
class EpochsNote:
    """What a device says beside its model. It is for the record: no weight depends on it."""

    epochs: int | None = None  # that it has done


class TwoStages(Aggregator):
    """w <- (1 - alpha_t) w + alpha_t w_i; devices train longer first, then the more carefully the staler they are."""

    note_type = EpochsNote

    def __init__(self, settings: FedSA, budget: int) -> None:
        self.settings, self.latest = settings, settings.first_stage * budget
        self.delays: dict[int, float] = {}  # each device's mean delay
        self.uploads, self.loss = 0, 0.0  # the sum of the losses in the window under way
        self.window: float | None = None  # the mean loss of the window before
        self.stage = 1

    def brief(self, device: int) -> Mapping[str, Any]:
        if self.stage == 1:
            return table(FactorsBrief(self.settings.first_epochs, 1.0))
        typical = median(self.delays.values())
        delay = self.delays.get(device, typical)
        return table(FactorsBrief(epoch_factor(delay, typical), lr_factor(delay)))

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        settings, delay = self.settings, upload.staleness - 1
        self.delays[upload.device] = smoothed(self.delays.get(upload.device), delay, settings.memory)
        self._follow(upload.report.loss)
        weight = settings.alpha * polynomial(delay, settings.polynomial_a)
        return Aggregate(torch.lerp(current.vector, upload.report.vector, weight), [weight], {"stage": self.stage})

    def _follow(self, loss: float) -> None:
        """The first stage ends with its share of the budget, or when the loss no longer falls."""
        settings = self.settings
        self.uploads, self.loss = self.uploads + 1, self.loss + loss
        if self.uploads % settings.window == 0:
            mean, self.loss = self.loss / settings.window, 0.0
            if self.window is not None and mean > (1 - settings.progress) * self.window:
                self.stage = 2
            self.window = mean
        if self.uploads >= self.latest:
            self.stage = 2

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("delays", "uploads", "loss", "window", "stage")}

    def restore(self, state: dict[str, Any]) -> None:
        self.delays, self.uploads, self.loss = dict(state["delays"]), state["uploads"], state["loss"]
        self.window, self.stage = state["window"], state["stage"]


class Directed(Learner):
    """Local SGD whose epochs and learning rate the server scales."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        brief = of_table(FactorsBrief, task.note)
        epochs = max(1, round(work.epochs * brief.epoch_factor))
        steps = range(epochs * work.steps_per_epoch)
        trained: Trained = yield Train(task.model.vector, steps, task.lr * brief.lr_factor)
        return Report(trained.vector, work.examples, trained.loss, table(EpochsNote(epochs)))


class FedSA(Algorithm):
    """Reconstruction: mixing by staleness in two stages, long trainings first, then gentler ones for stale devices."""

    title = "FedSA"
    kind = "asynchronous"
    knows_budget = True
    name: str = "fedsa"
    alpha: float = Field(0.6, gt=0, le=1, description="the weight of a fresh upload")
    polynomial_a: float = Field(0.5, ge=0, description="the exponent by which it falls with staleness")
    memory: float = Field(0.9, ge=0, lt=1, description="of the moving average of a device's delays")
    first_stage: float = Field(0.2, ge=0, le=1, description="share of the budget that the first stage lasts at most")
    first_epochs: float = Field(2.0, gt=0, description="how many times longer devices train in the first stage")
    window: int = Field(100, ge=1, description="uploads over which the training loss is averaged")
    progress: float = Field(0.01, ge=0, lt=1, description="the first stage ends when the loss falls by less a window")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return TwoStages(self, federation.budget)

    def learner(self) -> Learner:
        return Directed()
