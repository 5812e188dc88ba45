"""Dun, Hipolito, Jermaine, Dimitriadis, Kyrillidis: Efficient and light-weight federated learning via asynchronous
distributed dropout. AISTATS 2023, arXiv:2210.16105."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.asyncdrop.subnetwork import hidden_layers, kept_share, mask_of, work_share
from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic
from fedasmu.seeding import derive


def random_units(units: int, keep: int, seed: int) -> list[int]:
    chosen = torch.randperm(units, generator=torch.Generator().manual_seed(seed))[:keep]
    return sorted(chosen.tolist())


def scored_units(scores: Tensor, keep: int, rank: int, devices: int) -> list[int]:
    """By descending score, `keep` units from place rank * units / devices on, and from the first after the last"""
    order, first = scores.argsort(descending=True, stable=True), rank * len(scores) // devices
    return sorted(order.roll(-first)[:keep].tolist())


def merge(current: Tensor, trained: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) w + alpha w_i where the sub-network is, w elsewhere"""
    return torch.where(mask, torch.lerp(current, trained, alpha), current)


@dataclass(frozen=True, slots=True)
class SubnetworkBrief:
    """What a device is told with its task."""

    mask: Tensor  # where the sub-network is in the vector
    work: float  # a step's time, compared with the whole network's


class MergeSubnetwork(Aggregator):
    """Chooses a sub-network for every task, and merges only what belongs to it."""

    def __init__(self, settings: AsyncDrop, federation: Federation) -> None:
        self.settings, self.federation, self.layout = settings, federation, federation.layout
        self.hidden = hidden_layers(federation.layout, settings.spare)
        speed = sorted(range(federation.devices), key=lambda device: sum(federation.seconds(device)))
        self.rank = {device: rank for rank, device in enumerate(speed)}  # 0 is the fastest
        self.tasks = 0
        self.kept: dict[int, list[list[int]]] = {}  # device -> the units of each hidden layer in its task
        self.initial = self.latest = torch.zeros(self.layout.size)

    def brief(self, device: int) -> Mapping[str, Any]:
        self.kept[device] = self._choose(device)
        self.tasks += 1
        mask = self._mask(device)
        return table(SubnetworkBrief(mask, self.settings.time_factor or work_share(self.layout, mask)))

    def share(self, note: Mapping[str, Any]) -> float:
        return kept_share(of_table(SubnetworkBrief, note).mask)

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        alpha = self.settings.alpha
        if current.version == 0:
            self.initial = current.vector
        mask = self._mask(upload.device)
        del self.kept[upload.device]
        self.latest = merge(current.vector, upload.report.vector, mask, alpha)
        return Aggregate(self.latest, [alpha])

    def origin(self, upload: Upload) -> Tensor:
        """Where the training began: what was dropped is zero in it, and no way that the device went."""
        return upload.base.vector * self._mask(upload.device)

    def _mask(self, device: int) -> Tensor:
        return mask_of(self.layout, self.hidden, self.kept[device])

    def _choose(self, device: int) -> list[list[int]]:
        counts = [max(1, round(self.settings.keep * layer.units)) for layer in self.hidden]
        layers = list(zip(self.hidden, counts, strict=True))
        if self.settings.choice == "random":
            seeds = [derive(self.federation.seed, "units", self.tasks, place) for place in range(len(layers))]
            return [random_units(layer.units, count, seed) for (layer, count), seed in zip(layers, seeds, strict=True)]
        change, rank, devices = (self.latest - self.initial).abs(), self.rank[device], self.federation.devices
        return [scored_units(layer.score(change), count, rank, devices) for layer, count in layers]

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tasks", "kept", "initial", "latest")}

    def restore(self, state: dict[str, Any]) -> None:
        self.tasks, self.kept = state["tasks"], dict(state["kept"])
        self.initial, self.latest = state["initial"], state["latest"]


class SubnetworkSGD(Learner):
    """Local SGD of the sub-network: a weight that is dropped is zero, and stays so."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        vector, brief = task.model.vector, of_table(SubnetworkBrief, task.note)
        mask = brief.mask.to(vector.dtype)
        trained: Trained = yield Train(vector * mask, range(work.steps), task.lr, mask=mask, work=brief.work)
        return Report(trained.vector, work.examples, trained.loss)


class AsyncDrop(Algorithm):
    """Every task trains a sub-network, at a part of the cost, which is then merged into the model."""

    title = "AsyncDrop"
    kind = "asynchronous"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"syncdrop": {}}  # what FedASMU's paper calls it
    name: str = "asyncdrop"
    keep: float = Field(0.25, gt=0, le=1, description="share of a hidden layer's units that a device trains")
    alpha: float = Field(0.5, gt=0, le=1, description="the weight of an upload where it touches the model")
    choice: Literal["score", "random"] = Field(
        "score", description="which units: those that moved most to the fastest devices, or any"
    )
    spare: int = Field(1, ge=0, description="how many of the first hidden layers keep all their units")
    time_factor: float | None = Field(
        None, gt=0, le=1, description="a step's time, compared with the whole network's; none: from the kept weights"
    )

    @property
    def looks_inside(self) -> bool:
        return True

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return MergeSubnetwork(self, federation)

    def learner(self) -> Learner:
        return SubnetworkSGD()
