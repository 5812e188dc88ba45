"""Koloskova, Stich, Jaggi: Sharper convergence guarantees for asynchronous SGD for distributed and federated learning.
NeurIPS 2022, arXiv:2206.08307."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.algorithms.steps import displacement, stepped
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


def step_size(delay: int, bound: int, rate: float, large_delay: str) -> float:
    """eta up to a delay of tau_C, then eta / delay, or nothing"""
    if delay <= bound:
        return rate
    return rate / delay if large_delay == "scale" else 0.0


class DelayAdaptive(Aggregator):
    """w <- w + eta_t delta_i."""

    def __init__(self, settings: FedDelay, bound: int, trainable: int) -> None:
        self.settings, self.bound, self.trainable = settings, bound, trainable

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        weight = step_size(upload.staleness - 1, self.bound, self.settings.server_lr, self.settings.large_delay)
        update = displacement(uploads, [1.0])
        return Aggregate(stepped(current, update, uploads, [weight], self.trainable, weight), [weight])


class FedDelay(Algorithm):
    """Every update is applied on arrival, at a step size that shrinks beyond a delay of tau_C."""

    title = "FedDelay"
    kind = "asynchronous"
    name: str = "feddelay"
    server_lr: float = Field(0.3, gt=0, description="eta_g: the step size of an update that is not too late")
    tau_c: int | None = Field(None, ge=0, description="the delay that is not too late; none: the devices in flight")
    large_delay: Literal["scale", "drop"] = Field("scale", description="beyond it: divide by the delay, or drop")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        bound = federation.limit if self.tau_c is None else self.tau_c
        return DelayAdaptive(self, bound, federation.trainable)

    def learner(self) -> Learner:
        return LocalSGD()
