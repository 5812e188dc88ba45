"""The mean of the last models: what a run is judged by, and hands out, where its recipe asks for it.

The newest model of an asynchronous run leans towards whoever arrived last. Devices are still sent the newest one: the
mean is made beside the training, and changes nothing in it.
"""

from __future__ import annotations

from typing import Any

import torch

from fedasmu.protocol import Model


def kept(horizon: float, uploads: int) -> float:
    """(1 - 1/h)^u: the share that older models keep when a version brings u uploads more"""
    return (1.0 - 1.0 / horizon) ** uploads


class Average:
    """a <- a + (1 - k) / W (w - a), W <- k W + 1 - k, with k = kept(h, u).

    The horizon is counted in uploads, so that it means the same whether a version is one of them or a round of many. W
    is the weight of all that was seen: the untrained model has none, and the first version is the first mean.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.model: Model | None = None
        self.weight, self.uploads = 0.0, 0

    def add(self, newest: Model, uploads: int) -> None:
        """A new version, after so many uploads in all."""
        share = kept(self.horizon, max(1, uploads - self.uploads))
        self.weight, self.uploads = share * self.weight + 1.0 - share, uploads
        before = newest.vector if self.model is None else self.model.vector
        self.model = Model(newest.version, torch.lerp(before, newest.vector, (1.0 - share) / self.weight))

    def state(self) -> dict[str, Any]:
        mean = None if self.model is None else (self.model.version, self.model.vector)
        return {"mean": mean, "weight": self.weight, "uploads": self.uploads}

    def restore(self, state: dict[str, Any]) -> None:
        self.model = None if state["mean"] is None else Model(*state["mean"])
        self.weight, self.uploads = state["weight"], state["uploads"]
