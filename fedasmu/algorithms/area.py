"""Iakovidou, Kim: Asynchronous federated stochastic optimization for heterogeneous objectives under arbitrary delays
(AREA). arXiv:2405.10123, 2024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


class ExactMean(Aggregator):
    """w <- w + (1/m) (x_i - y_i), then y_i <- x_i: w stays the mean of every device's last model y_i, at first w_0."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.initial: Tensor | None = None

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        if self.initial is None:
            self.initial = current.vector
        weight, vector, shelf = 1 / self.federation.devices, current.vector.clone(), self.federation.shelf
        for upload in uploads:
            last = shelf.get(upload.device)
            vector.add_(upload.report.vector - (self.initial if last is None else last), alpha=weight)
            shelf.put(upload.device, upload.report.vector)
        return Aggregate(vector, [weight] * len(uploads))

    def state(self) -> dict[str, Any]:
        return {"initial": self.initial}

    def restore(self, state: dict[str, Any]) -> None:
        self.initial = state["initial"]


class Area(Algorithm):
    """The model is the exact mean of every device's last model, however unevenly they take part."""

    title = "AREA"
    kind = "asynchronous"
    name: str = "area"
    buffer: int = Field(1, ge=1, description="uploads to an aggregation")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return ExactMean(federation)

    def learner(self) -> Learner:
        return LocalSGD()
