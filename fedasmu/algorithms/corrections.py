"""Corrections of client drift for FedASMU-R: what is added to a device's displacement, because the devices that are not
there would have pulled the model elsewhere.

Numbers such as (R5) are those of docs/algorithms/fedasmu-r.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedasmu.algorithms.base import Federation
from fedasmu.algorithms.feddyn import strength_for


class Correction(ABC):
    """Turns the displacement of an upload into the move that the server makes with it."""

    def pull(self, device: int) -> float | None:
        """How strongly the device is held where it was; None: not at all."""
        return None

    @abstractmethod
    def corrected(self, device: int, displacement: Tensor) -> Tensor: ...

    def details(self) -> Mapping[str, float]:
        """What is worth a line in the record."""
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing to restore by default
        """Take back what `state` gave."""


class Uncorrected(Correction):
    def corrected(self, device: int, displacement: Tensor) -> Tensor:
        return displacement


class DynamicRegulariser(Correction):
    """(R6): d + mean over all devices of h_k, where every device adds its displacement to its own h, as in FedDyn."""

    def __init__(self, alpha: float, federation: Federation) -> None:
        self.alpha, self.federation = alpha, federation
        self.mean_h = torch.zeros(())

    def pull(self, device: int) -> float | None:
        return strength_for(device, self.alpha, self.federation)

    def corrected(self, device: int, displacement: Tensor) -> Tensor:
        self.mean_h = self.mean_h + displacement / self.federation.devices
        return displacement + self.mean_h

    def state(self) -> dict[str, Any]:
        return {"mean_h": self.mean_h}

    def restore(self, state: dict[str, Any]) -> None:
        self.mean_h = state["mean_h"]


class Slope:
    """(R5): the slope of a regression through the origin, over pairs that are forgotten by and by."""

    def __init__(self, memory: int) -> None:
        self.kept = 1.0 - 1.0 / max(memory, 2)
        self.products = self.squares = 0.0

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.products = self.kept * self.products + float(torch.dot(x, y))
        self.squares = self.kept * self.squares + float(torch.dot(x, x))

    @property
    def value(self) -> float:
        """Between 0 and 1; 0 as long as nothing is known."""
        return max(0.0, min(1.0, self.products / self.squares)) if self.squares > 0 else 0.0


class CachedUpdates(Correction):
    """(R4): d + rho (mean h - h_i), where h_i is the device's last displacement, on the shelf, as in CA2FL and SAGA.
    What all devices last did together then counts `stride` times more: (R12), d + stride mean h.

    Without a rho of its own it is (R5), the share of how devices differed last time that is there again this time. It
    is 1 where their data pull them apart, and 0 where only chance does: then a correction would only add its noise. The
    mean is that of the devices heard so far, and a device that is new is not corrected.
    """

    def __init__(self, rho: float | None, stride: float, federation: Federation) -> None:
        self.rho, self.stride, self.shelf = rho, stride, federation.shelf
        self.slope = Slope(federation.devices)
        self.mean_h, self.heard = torch.zeros(()), 0

    @property
    def strength(self) -> float:
        return self.slope.value if self.rho is None else self.rho

    def corrected(self, device: int, displacement: Tensor) -> Tensor:
        before, after = self.shelf.get(device), displacement
        if before is None:
            self.heard += 1
            self.mean_h = self.mean_h + (displacement - self.mean_h) / self.heard
        else:
            apart = before - self.mean_h
            self.slope.observe(apart, displacement - self.mean_h)
            after = displacement - self.strength * apart
            self.mean_h = self.mean_h + (displacement - before) / self.heard
        self.shelf.put(device, displacement)
        return torch.add(after, self.mean_h, alpha=self.stride)

    def details(self) -> Mapping[str, float]:
        return {"rho": self.strength}

    def state(self) -> dict[str, Any]:
        sums = {"products": self.slope.products, "squares": self.slope.squares}
        return {"mean_h": self.mean_h, "heard": self.heard, **sums}

    def restore(self, state: dict[str, Any]) -> None:
        self.mean_h, self.heard = state["mean_h"], state["heard"]
        self.slope.products, self.slope.squares = state["products"], state["squares"]
