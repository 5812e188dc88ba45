"""What a device of FedASMU is told, what it says beside its model, and whether that can be true: a device is not
believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

MOST_REWARD = 1e3  # a difference of two losses beyond this teaches nothing worth knowing


@dataclass(frozen=True, slots=True)
class MergeNote:
    """What is None did not happen: nothing was asked for, there was no newer model, nobody wants the gradient."""

    gradient: Tensor | None = None  # at the model that was sent, where the server wants it
    slot: int | None = None  # when the device asked for a fresh model
    merged_after: int | None = None  # the steps that it had done when it merged one
    beta: float | None = None  # the fresh model's weight, (8)
    reward: float | None = None  # by how much merging lowered the loss
    gamma: float | None = None  # what the device has learned since, (9)
    upsilon: float | None = None


@dataclass(frozen=True, slots=True)
class SlotBrief:
    """What a device is told with its task."""

    slot: int | None = None  # when to ask for a fresh model; None: as its own table says


class Merge(Protocol):
    """What FedASMU's note and FedASMU-R's tell alike."""

    @property
    def slot(self) -> int | None: ...
    @property
    def merged_after(self) -> int | None: ...
    @property
    def beta(self) -> float | None: ...
    @property
    def reward(self) -> float | None: ...


def merge_fits(note: Merge, steps: int, units: int, low: float, high: float) -> bool:
    """Whether what a note says about a merge can be true: its weight, the moment, the slot, the reward."""
    if note.beta is not None and not (low <= note.beta <= high and _counts(note.merged_after, steps)):
        return False
    if note.slot is not None and not _counts(note.slot, units):
        return False
    reward = 0.0 if note.reward is None else note.reward
    return abs(reward) <= MOST_REWARD or (isinstance(reward, float) and not math.isfinite(reward))


def gradient_fits(sent: Tensor | None, size: int) -> bool:
    """Whether it is a gradient, of as many elements, and finite."""
    return (
        sent is not None
        and sent.dtype == torch.float32
        and sent.layout == torch.strided
        and sent.device.type == "cpu"
        and sent.shape == (size,)
        and bool(torch.isfinite(sent).all())
    )


def _counts(value: int | None, limit: int) -> bool:
    return value is not None and 1 <= value < limit
