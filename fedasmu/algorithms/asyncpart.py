"""Wang, Zhang, Wang: Asynchronous federated learning over wireless communication networks. IEEE ICC 2021. Its formulas
are not public: this is a reconstruction from its abstract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasync import polynomial
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


def participation(uploads: int, total: int, devices: int) -> float:
    """u_i = (c_i + 1) / (C + m): a device's share of the uploads so far, smoothed"""
    return (uploads + 1) / (total + devices)


def fusion_weight(examples: float, uploads: float, delay: int, alpha: float, a: float, most: float) -> float:
    """beta = alpha (p_i / u_i) (delay + 1)^-a, at most `most`, from the shares of examples p_i and of uploads u_i"""
    return min(most, alpha * examples / uploads * polynomial(delay, a))


class Fuse(Aggregator):
    """w <- (1 - beta) w + beta w_i: who uploads often weighs less, so that in the end examples decide."""

    def __init__(self, settings: AsyncPart, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        self.counts = [0] * federation.devices

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        settings, device = self.settings, upload.device
        examples = self.federation.examples[device] / self.federation.total
        share = participation(self.counts[device], sum(self.counts), self.federation.devices)
        self.counts[device] += 1
        delay, limits = upload.staleness - 1, (settings.alpha, settings.polynomial_a, settings.max_weight)
        weight = fusion_weight(examples, share, delay, *limits)
        return Aggregate(torch.lerp(current.vector, upload.report.vector, weight), [weight])

    def state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


class AsyncPart(Algorithm):
    """Reconstruction: an upload's weight makes up for how often its device takes part, and falls with staleness."""

    title = "AsyncPart"
    kind = "asynchronous"
    name: str = "asyncpart"
    alpha: float = Field(0.5, gt=0, le=1, description="the weight of a fresh upload of an average device")
    polynomial_a: float = Field(0.5, ge=0, description="the exponent by which it falls with staleness")
    max_weight: float = Field(0.9, gt=0, le=1, description="the largest weight")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Fuse(self, federation)

    def learner(self) -> Learner:
        return LocalSGD()
