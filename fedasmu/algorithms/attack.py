"""Devices that lie, for studies: what they upload is not what they trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Learner
from fedasmu.protocol import Memory, Report, Session, Task, Workload
from fedasmu.section import Section
from fedasmu.seeding import derive, uniform

Kind = Literal["sign-flip", "scale", "noise", "same-value"]


class AttackSettings(Section):
    share: float = Field(0.0, ge=0, le=1, description="of the devices that lie about what they trained")
    kind: Kind = Field("sign-flip", description="what they upload instead of their model")
    factor: float = Field(10.0, gt=0, allow_inf_nan=False, description="how strong it is; a sign-flip has its own size")

    def around(self, learner: Learner, trainable: int, seed: int) -> Learner:
        """The same learner, unless some of the devices are to lie."""
        return Lying(learner, self, trainable, seed) if self.share else learner


def sign_flip(moved: Tensor, factor: float, seed: int) -> Tensor:
    """-d: as far as the honest training went, in the opposite direction"""
    return -moved


def scale(moved: Tensor, factor: float, seed: int) -> Tensor:
    """factor d"""
    return factor * moved


def noise(moved: Tensor, factor: float, seed: int) -> Tensor:
    """d + factor rms(d) z, where z is standard normal"""
    drawn = torch.randn(moved.shape, generator=torch.Generator().manual_seed(seed))
    return moved + factor * moved.square().mean().sqrt() * drawn


def same_value(moved: Tensor, factor: float, seed: int) -> Tensor:
    """factor rms(d) in every place"""
    return torch.full_like(moved, factor * float(moved.square().mean().sqrt()))


ATTACKS: dict[Kind, Callable[[Tensor, float, int], Tensor]] = {
    "sign-flip": sign_flip,
    "scale": scale,
    "noise": noise,
    "same-value": same_value,
}


class Lying(Learner):
    """An honest session; on the devices that lie its report is falsified. Which these are depends on the seed alone."""

    def __init__(self, learner: Learner, settings: AttackSettings, trainable: int, seed: int) -> None:
        self.inner, self.settings, self.trainable, self.seed = learner, settings, trainable, seed

    def lies(self, device: int) -> bool:
        return uniform(self.seed, "lies", device) < self.settings.share

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        report: Report = yield from self.inner.train(task, work, memory)
        return self._falsified(report, task) if self.lies(task.device) else report

    def _falsified(self, report: Report, task: Task) -> Report:
        start, vector = task.model.vector[: self.trainable], report.vector.clone()
        moved = vector[: self.trainable] - start
        vector[: self.trainable] = start + ATTACKS[self.settings.kind](
            moved, self.settings.factor, derive(task.seed, "lie")
        )
        return replace(report, vector=vector)
