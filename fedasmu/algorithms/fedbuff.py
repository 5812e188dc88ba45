"""Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous aggregation.
AISTATS 2022, arXiv:2106.06639."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasync import polynomial
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.algorithms.steps import displacement, stepped
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


class Buffered(Aggregator):
    """w <- w + eta_g v, where v <- momentum v + (1/K) sum_i c_i delta_i."""

    def __init__(self, settings: FedBuff, trainable: int) -> None:
        self.settings, self.trainable = settings, trainable
        self.velocity = torch.zeros(())

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        settings, trainable = self.settings, self.trainable
        # What is left at the end of a run is divided by K too: an upload weighs the same in whichever buffer it is.
        weights = [settings.weight(upload.staleness - 1) / settings.buffer for upload in uploads]
        update = displacement(uploads, weights)
        if settings.momentum:
            self.velocity = settings.momentum * self.velocity + update[:trainable]
            update[:trainable] = self.velocity
        weights = [settings.server_lr * weight for weight in weights]
        return Aggregate(stepped(current, update, uploads, weights, trainable, settings.server_lr), weights)

    def state(self) -> dict[str, Any]:
        return {"velocity": self.velocity}

    def restore(self, state: dict[str, Any]) -> None:
        self.velocity = state["velocity"]


class FedBuff(Algorithm):
    """Updates gather in a buffer of K, each the lighter the staler it is; a full buffer is applied at once."""

    title = "FedBuff"
    kind = "buffered"
    name: str = "fedbuff"
    buffer: int = Field(5, ge=1, description="K: uploads to an aggregation")
    server_lr: float = Field(1.0, gt=0, description="eta_g: how far the server follows the buffer's mean")
    momentum: float = Field(0.0, ge=0, lt=1, description="of the server")
    staleness: Literal["polynomial", "constant"] = Field("polynomial", description="how an update's weight falls")
    polynomial_a: float = Field(0.5, ge=0, description="the exponent of the polynomial form")

    def weight(self, delay: int) -> float:
        return polynomial(delay, self.polynomial_a) if self.staleness == "polynomial" else 1.0

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Buffered(self, federation.trainable)

    def learner(self) -> Learner:
        return LocalSGD()
