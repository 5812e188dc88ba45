"""Xu, Zhang, Di, Liu, Alharthi, Cao: FedFa: a fully asynchronous training paradigm for federated learning. IJCAI
2024, arXiv:2404.11015."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD, weighted_mean
from fedasmu.algorithms.steps import displacement, stepped
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


class Window(Aggregator):
    """w <- mean of the K newest models, at first K times w_0; or w <- w + mean of the K newest updates."""

    def __init__(self, form: str, length: int, trainable: int) -> None:
        self.form, self.trainable = form, trainable
        self.window: deque[Tensor] = deque(maxlen=length)

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        length, models = self.window.maxlen or 1, self.form == "model"
        if not self.window:
            self.window.extend([current.vector if models else torch.zeros_like(current.vector)] * length)
        self.window.append(upload.report.vector if models else displacement(uploads, [1.0]))
        mean, weights = weighted_mean(self.window, [1.0] * length), [1 / length]
        return Aggregate(mean if models else stepped(current, mean, uploads, weights, self.trainable), weights)

    def state(self) -> dict[str, Any]:
        return {"window": list(self.window)}

    def restore(self, state: dict[str, Any]) -> None:
        self.window.extend(state["window"])


class FedFa(Algorithm):
    """Every upload takes the oldest one's place in a window, and the model is the window's mean."""

    title = "FedFa"
    kind = "asynchronous"
    name: str = "fedfa"
    window: int | None = Field(None, ge=1, description="K: how many uploads; none: the devices in flight")
    form: Literal["model", "delta"] = Field("model", description="a window of models, or of their updates")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Window(self.form, self.window or federation.limit, federation.trainable)

    def learner(self) -> Learner:
        return LocalSGD()
