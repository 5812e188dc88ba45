"""Wang, Wang, Lu, Chen: FADAS: towards federated adaptive asynchronous optimization. ICML 2024, arXiv:2407.18365."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD, weighted_mean
from fedasmu.algorithms.steps import displacement
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


def moments(delta: Tensor, m: Tensor, v: Tensor, peak: Tensor, b1: float, b2: float) -> tuple[Tensor, Tensor, Tensor]:
    """m <- b1 m + (1 - b1) Delta, v <- b2 v + (1 - b2) Delta^2, peak <- max(peak, v)"""
    m, v = b1 * m + (1 - b1) * delta, b2 * v + (1 - b2) * delta.square()
    return m, v, torch.maximum(peak, v)


def delay_adaptive(rate: float, delay: int, bound: int) -> float:
    """eta while the largest delay in the buffer is at most tau_c, else eta / delay"""
    return rate if delay <= bound else rate / delay


class Adaptive(Aggregator):
    """w <- w + eta_t m / (sqrt(peak) + eps). BatchNorm statistics are averaged over the buffer instead."""

    def __init__(self, settings: Fadas, trainable: int) -> None:
        self.settings, self.trainable = settings, trainable
        self.m = self.v = self.peak = torch.zeros(())

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        settings, trainable = self.settings, self.trainable
        delta = displacement(uploads, [1 / settings.buffer] * len(uploads))[:trainable]
        self.m, self.v, self.peak = moments(delta, self.m, self.v, self.peak, settings.beta1, settings.beta2)
        rate = self._rate(max(upload.staleness - 1 for upload in uploads))
        m, peak = self.m, self.peak
        if settings.bias_correction:
            m = m / (1 - settings.beta1 ** (current.version + 1))
            peak = peak / (1 - settings.beta2 ** (current.version + 1))
        vector = weighted_mean([upload.report.vector for upload in uploads], [1.0] * len(uploads))
        vector[:trainable] = current.vector[:trainable] + rate * m / (peak.sqrt() + settings.epsilon)
        return Aggregate(vector, [1 / settings.buffer] * len(uploads), {"rate": rate})

    def _rate(self, delay: int) -> float:
        settings = self.settings
        return delay_adaptive(settings.server_lr, delay, settings.tau_c) if settings.adaptive else settings.server_lr

    def state(self) -> dict[str, Any]:
        return {"m": self.m, "v": self.v, "peak": self.peak}

    def restore(self, state: dict[str, Any]) -> None:
        self.m, self.v, self.peak = state["m"], state["v"], state["peak"]


class Fadas(Algorithm):
    """A buffer of updates is the gradient of an Adam-like server, whose step shrinks when the buffer is stale."""

    title = "FADAS"
    kind = "buffered"
    name: str = "fadas"
    buffer: int = Field(5, ge=1, description="M: uploads to an aggregation")
    server_lr: float = Field(1e-3, gt=0, description="eta: the server's step size")
    beta1: float = Field(0.9, ge=0, lt=1, description="memory of the mean")
    beta2: float = Field(0.99, ge=0, lt=1, description="memory of the mean square")
    epsilon: float = Field(1e-8, gt=0, description="keeps the division finite")
    adaptive: bool = Field(True, description="shrink the step when the buffer is stale")
    tau_c: int = Field(1, ge=1, description="the largest delay in a buffer that is not stale")
    bias_correction: bool = Field(False, description="Adam's corrections of the first steps, as in the authors' code")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Adaptive(self, federation.trainable)

    def learner(self) -> Learner:
        return LocalSGD()
