"""Xie, Koyejo, Gupta: Asynchronous federated optimization. OPT workshop 2020, arXiv:1903.03934."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


def constant(delay: int) -> float:
    return 1.0


def polynomial(delay: float, a: float) -> float:
    """(delay + 1)^-a"""
    return float((delay + 1) ** -a)


def hinge(delay: int, a: float, b: int) -> float:
    """1 up to a delay of b, then 1 / (a (delay - b) + 1)"""
    return 1.0 if delay <= b else 1.0 / (a * (delay - b) + 1.0)


class Mix(Aggregator):
    """w <- (1 - alpha_t) w + alpha_t w_i with alpha_t = alpha * s(delay); delay = t - o is 0 for a fresh upload."""

    def __init__(self, settings: FedAsync) -> None:
        self.settings = settings

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        weight = self.settings.weight(upload.staleness - 1)
        return Aggregate(torch.lerp(current.vector, upload.report.vector, weight), [weight])


class FedAsync(Algorithm):
    """Every upload is mixed in on arrival, the less the staler it is."""

    title = "FedAsync"
    kind = "asynchronous"
    name: str = "fedasync"
    alpha: float = Field(0.6, gt=0, le=1, description="the weight of a fresh upload")
    staleness: Literal["constant", "polynomial", "hinge"] = Field("polynomial", description="how the weight falls")
    polynomial_a: float = Field(0.5, ge=0, description="the exponent of the polynomial form")
    hinge_a: float = Field(10.0, gt=0, description="how steeply the hinge falls")
    hinge_b: int = Field(4, ge=0, description="the delay up to which the hinge form keeps the full weight")
    rho: float = Field(0.005, ge=0, description="strength of the proximal term on the devices")

    def weight(self, delay: int) -> float:
        if self.staleness == "constant":
            return self.alpha * constant(delay)
        if self.staleness == "polynomial":
            return self.alpha * polynomial(delay, self.polynomial_a)
        return self.alpha * hinge(delay, self.hinge_a, self.hinge_b)

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Mix(self)

    def learner(self) -> Learner:
        return LocalSGD(pull=self.rho)
