"""Dun, Hipolito, Jermaine, Dimitriadis, Kyrillidis: Efficient and light-weight federated learning via asynchronous
distributed dropout. AISTATS 2023, arXiv:2210.16105."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic
from fedasmu.seeding import derive
from fedasmu.vector import Entry, Layout


@dataclass(frozen=True, slots=True)
class Hidden:
    """The units of a hidden layer: a row each of these tensors, and some columns of the next layer's weight."""

    units: int
    rows: tuple[Entry, ...]
    columns: Entry | None  # None: the next layer was not recognised, and its columns stay

    def drop(self, mask: Tensor, dropped: Tensor) -> None:
        for entry in self.rows:
            entry.view(mask)[dropped] = False
        if self.columns is not None:
            # After a convolution and a flattening, a unit feeds several neighbouring columns.
            self.columns.view(mask).view(self.columns.shape[0], self.units, -1)[:, dropped] = False


def hidden_layers(layout: Layout, spare: int) -> list[Hidden]:
    """The layers whose units may be dropped: neither the first `spare` ones, as far as others are left, nor the last.

    A layer is taken to feed the next one if both are children of the same module and their widths fit. Others stay
    whole, for instance those that a residual connection goes around. Where not a single pair is recognised, units are
    dropped from all hidden layers, but by their rows alone.
    """
    weights = [entry for entry in layout.parameters if len(entry.shape) > 1]
    pairs = list(pairwise(weights))
    chained = [(weight, following) for weight, following in pairs if _feeds(weight, following)]
    found = [_hidden(layout, weight, following, following) for weight, following in chained]
    found = found or [_hidden(layout, weight, following, None) for weight, following in pairs]
    return found[min(spare, len(found) - 1) :] if found else []


def _feeds(weight: Entry, following: Entry) -> bool:
    units, inputs = weight.shape[0], following.shape[1]
    return _parent(weight) == _parent(following) and (
        inputs == units or (inputs % units == 0 and len(following.shape) == 2)
    )


def _hidden(layout: Layout, weight: Entry, following: Entry, columns: Entry | None) -> Hidden:
    """With the biases and normalisations between the two weights, and their statistics."""
    owners = {_owner(entry) for entry in layout.parameters if weight.offset <= entry.offset < following.offset}
    vectors = [
        entry
        for entry in (*layout.parameters, *layout.buffers)
        if _owner(entry) in owners and entry.shape == weight.shape[:1]
    ]
    return Hidden(weight.shape[0], (weight, *vectors), columns)


def _owner(entry: Entry) -> str:
    return entry.name.rpartition(".")[0]


def _parent(entry: Entry) -> str:
    return _owner(entry).rpartition(".")[0]


def draw_mask(layout: Layout, hidden: Sequence[Hidden], keep: float, seed: int) -> Tensor:
    """Which elements of the vector belong to a sub-network that keeps this share of every hidden layer's units."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(layout.size, dtype=torch.bool)
    for layer in hidden:
        order = torch.randperm(layer.units, generator=generator)
        layer.drop(mask, order[max(1, round(keep * layer.units)) :])
    return mask


def work_share(layout: Layout, mask: Tensor) -> float:
    """What a step of the sub-network costs: the kept share of each layer's weights, all layers counting alike."""
    shares = [float(entry.view(mask).float().mean()) for entry in layout.parameters if len(entry.shape) > 1]
    return sum(shares) / len(shares)


def merge(current: Tensor, trained: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) w + alpha w_i where the sub-network is, w elsewhere"""
    return torch.where(mask, torch.lerp(current, trained, alpha), current)


class MergeSubnetwork(Aggregator):
    """Draws a sub-network for every task, and merges only what belongs to it."""

    def __init__(self, settings: AsyncDrop, federation: Federation) -> None:
        self.settings, self.seed, self.layout = settings, federation.seed, federation.layout
        self.hidden = hidden_layers(federation.layout, settings.spare)
        self.drawn = 0
        self.draws: dict[int, int] = {}  # device -> the number of its draw: a mask is made again from that

    def brief(self, device: int) -> Mapping[str, Any]:
        self.draws[device] = self.drawn
        self.drawn += 1
        mask = self._mask(device)
        return {"mask": mask, "work": self.settings.time_factor or work_share(self.layout, mask)}

    def share(self, note: Mapping[str, Any]) -> float:
        return float(note["mask"].float().mean())

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        mask = self._mask(upload.device)[: len(current.vector)]
        return Aggregate(merge(current.vector, upload.report.vector, mask, self.settings.alpha), [self.settings.alpha])

    def _mask(self, device: int) -> Tensor:
        seed = derive(self.seed, "sub-network", self.draws[device])
        return draw_mask(self.layout, self.hidden, self.settings.keep, seed)

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "draws": self.draws}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        self.draws = {int(device): draw for device, draw in state["draws"].items()}


class SubnetworkSGD(Learner):
    """Local SGD of the sub-network: a weight that is dropped is zero, and stays so."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        vector = task.model.vector
        mask = task.note["mask"][: len(vector)].to(vector.dtype)  # without training, a vector stands for the model
        trained: Trained = yield Train(vector * mask, range(work.steps), task.lr, mask=mask, work=task.note["work"])
        return Report(trained.vector, work.examples, trained.loss)


class AsyncDrop(Algorithm):
    """Every task trains a random sub-network, at a part of the cost, which is then merged into the model."""

    kind = "asynchronous"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"syncdrop": {}}  # what FedASMU's paper calls it
    name: Literal["asyncdrop", "syncdrop"] = "asyncdrop"
    keep: float = Field(0.25, gt=0, le=1, description="share of a hidden layer's units that a device trains")
    alpha: float = Field(0.5, gt=0, le=1, description="the weight of an upload where it touches the model")
    spare: int = Field(1, ge=0, description="how many of the first hidden layers keep all their units")
    time_factor: float | None = Field(
        None, gt=0, le=1, description="a step's time, compared with the whole network's; none: from the kept weights"
    )

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return MergeSubnetwork(self, federation)

    def learner(self) -> Learner:
        return SubnetworkSGD()
