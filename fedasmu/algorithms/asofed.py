"""Chen, Ning, Slawski, Rangwala: Asynchronous online federated learning for edge devices with non-IID data. IEEE
Big Data 2020, arXiv:1911.02134."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.steps import stepped
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic


def direction(v: Tensor, before: Tensor, h: Tensor) -> Tensor:
    """zeta = v - v_pre + h_pre"""
    return v - before + h


def remembered(h: Tensor, before: Tensor, beta: float) -> Tensor:
    """h <- beta h_pre + (1 - beta) v_pre"""
    return beta * h + (1 - beta) * before


def rate(delay: float, typical: float) -> float:
    """r_i = max(1, ln(delay_i)), delays counted so that the typical one is e: the faster half keeps a rate of 1"""
    return max(1.0, math.log(math.e * delay / typical))


def recounted(update: Tensor, last: Tensor, mean: Tensor, before: int, examples: int) -> Tensor:
    """u + (1 - n_before / n) (w_last - w): of a device whose last model is in the mean by n_before, not n, examples"""
    return update + (1 - before / examples) * (last - mean)


def featured(weight: Tensor) -> Tensor:
    """W[i,j] exp|W[i,j]| / sum_j exp|W[i,j]|"""
    rows = weight.flatten(1)
    return (rows * torch.softmax(rows.abs(), dim=1)).view_as(weight)


@dataclass(frozen=True, slots=True)
class RateBrief:
    """What a device is told with its task."""

    rate: float  # r_i
    trainable: int  # elements of the model, the first ones


class Replace(Aggregator):
    """w <- w - (n_i / N) (w_i_last - w_i), N over the devices seen so far: the mean of their last models, by examples.

    A device's last model is on the shelf; on first contact the current model stands for it.
    """

    def __init__(self, settings: AsoFed, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        self.seen: dict[int, int] = {}  # examples of each device, when it was last seen
        self.total = 0  # of them all
        self.typical = median(sum(federation.seconds(device)) for device in range(federation.devices))

    def brief(self, device: int) -> Mapping[str, Any]:
        delay = sum(self.federation.seconds(device))
        return table(RateBrief(rate(delay, self.typical), self.federation.trainable))

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        device, vector, shelf = upload.device, upload.report.vector, self.federation.shelf
        last, examples = shelf.get(device), self.federation.examples[device]
        if last is None:  # first contact: what it adds to a mean is measured from the mean itself
            last = current.vector
        shelf.put(device, vector)
        update, before = vector - last, self.seen.get(device, examples)
        if before != examples:  # a real device came back with other data
            update = recounted(update, last, current.vector, before, examples)
        self.total += examples - self.seen.get(device, 0)
        self.seen[device] = examples
        weight = examples / self.total
        replaced = stepped(current, update, uploads, [weight], self.federation.trainable, weight)
        return Aggregate(self._learn_features(replaced), [weight])

    def _learn_features(self, vector: Tensor) -> Tensor:
        if self.settings.features != "off":
            layers = [entry for entry in self.federation.layout.parameters if len(entry.shape) > 1]
            first = layers[0].view(vector)
            first.copy_(featured(first))
        return vector

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = dict(state["seen"])
        self.total = sum(self.seen.values())


class Online(Learner):
    """SGD on f_i(w) + (lambda / 2) ||w - w_o||^2 along zeta, which balances this gradient with the ones before it.

    The recursion is taken once for the whole displacement, or in every step.
    """

    def __init__(self, settings: AsoFed) -> None:
        self.settings = settings

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        if self.settings.recursion == "step":
            return (yield from self._by_step(task, work, memory))
        start, brief = task.model.vector, of_table(RateBrief, task.note)
        trainable = brief.trainable
        before = memory.get("v", torch.zeros_like(start[:trainable]))
        h = memory.get("h", torch.zeros_like(before))
        trained: Trained = yield Train(start, range(work.steps), task.lr, pull=self.settings.pull)
        v = (start - trained.vector)[:trainable]
        vector = trained.vector.clone()
        vector[:trainable] = start[:trainable] - brief.rate * direction(v, before, h)
        memory["v"], memory["h"] = v, remembered(h, before, self.settings.beta)
        return Report(vector, work.examples, trained.loss)

    def _by_step(self, task: Task, work: Workload, memory: Memory) -> Session:
        start = vector = task.model.vector
        lr, loss = task.lr * of_table(RateBrief, task.note).rate, 0.0
        before, h = memory.get("v", torch.zeros_like(vector)), memory.get("h", torch.zeros_like(vector))
        for step in range(work.steps):
            # A step is -lr (gradient + pull (w - anchor)): with this anchor, -lr zeta. Then zeta gives back v.
            anchor = vector - (self.settings.pull * (vector - start) - before + h)
            trained: Trained = yield Train(vector, range(step, step + 1), lr, pull=1.0, anchor=anchor)
            v = (vector - trained.vector) / lr + before - h
            h, before = remembered(h, before, self.settings.beta), v
            vector, loss = trained.vector, loss + trained.loss
        memory["v"], memory["h"] = before, h
        return Report(vector, work.examples, loss / work.steps)


class AsoFed(Algorithm):
    """Each device's last model is replaced by its new one in a running mean; devices balance old and new gradients."""

    title = "ASO-Fed"
    kind = "asynchronous"
    name: str = "asofed"
    pull: float = Field(0.01, ge=0, description="lambda: strength of the proximal term on the devices")
    beta: float = Field(0.5, ge=0, lt=1, description="how slowly a device forgets old gradients")
    recursion: Literal["round", "step"] = Field("round", description="balance whole trainings, or every SGD step")
    features: Literal["off", "paper"] = Field("off", description="feature learning, first layer")

    @property
    def looks_inside(self) -> bool:
        return self.features != "off"

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Replace(self, federation)

    def learner(self) -> Learner:
        return Online(self)
