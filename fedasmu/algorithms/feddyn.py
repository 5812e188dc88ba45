"""Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization. ICLR
2021, arXiv:2111.04263."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import weighted_mean
from fedasmu.algorithms.steps import displacement
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Rounds


def strength(alpha: float, examples: int, mean_examples: float) -> float:
    """alpha_i = alpha / (m n_i / D): a device with few examples is regularised more"""
    return alpha * mean_examples / examples


def strength_for(device: int, alpha: float, federation: Federation) -> float:
    """Of what is known of the devices now: real ones enrol with their own numbers of examples."""
    return strength(alpha, federation.examples[device], federation.total / federation.devices)


def anchor(received: Tensor, h: Tensor) -> Tensor:
    """alpha_i (w - w_r + h_i) is a pull of alpha_i towards w_r - h_i"""
    return received - h


@dataclass(frozen=True, slots=True)
class RegulariserBrief:
    """What a device is told with its task."""

    strength: float  # alpha_i


class DynamicAverage(Aggregator):
    """w <- mean_S w_i + mean over all devices of h_k. Only that mean is kept: each h_k is its own device's."""

    def __init__(self, alpha: float, federation: Federation) -> None:
        self.alpha, self.federation = alpha, federation
        self.mean_h = torch.zeros(())

    def brief(self, device: int) -> Mapping[str, Any]:
        return table(RegulariserBrief(strength_for(device, self.alpha, self.federation)))

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        trainable, ones = self.federation.trainable, [1.0] * len(uploads)
        # Every device that took part has added its own displacement to its h.
        self.mean_h = self.mean_h + displacement(uploads, ones)[:trainable] / self.federation.devices
        vector = weighted_mean([upload.report.vector for upload in uploads], ones)
        vector[:trainable] += self.mean_h
        return Aggregate(vector, [1 / len(uploads)] * len(uploads))

    def state(self) -> dict[str, Any]:
        return {"mean_h": self.mean_h}

    def restore(self, state: dict[str, Any]) -> None:
        self.mean_h = state["mean_h"]


class DynamicSGD(Learner):
    """Each step follows grad f_i(w) + alpha_i (w - w_r + h_i); afterwards h_i += w_i - w_r."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        received, pull = task.model.vector, of_table(RegulariserBrief, task.note).strength
        h = memory.get("h", torch.zeros(()))
        trained: Trained = yield Train(received, range(work.steps), task.lr, pull=pull, anchor=anchor(received, h))
        memory["h"] = h + trained.vector - received
        return Report(trained.vector, work.examples, trained.loss)


class FedDyn(Algorithm):
    """A dynamic regulariser on every device makes the local optima agree with the global one."""

    title = "FedDyn"
    kind = "synchronous"
    name: str = "feddyn"
    alpha: float = Field(0.01, ge=0, description="strength of the regulariser")

    def schedule(self, pace: Pace) -> Rounds:
        return Rounds(pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return DynamicAverage(self.alpha, federation)

    def learner(self) -> Learner:
        return DynamicSGD()
