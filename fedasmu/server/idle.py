"""The devices without a task: who is drawn next, uniformly and without replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedasmu.seeding import derive


class Idle:
    def __init__(self, devices: int, seed: int) -> None:
        self.seed = seed
        self._devices = list(range(devices))
        self._draws = 0

    def take(self, device: int) -> None:
        """It gets a task."""
        try:
            self._devices.remove(device)
        except ValueError:
            raise ValueError(f"device {device} cannot be started: it is busy, or there is none") from None

    def give_back(self, device: int) -> None:
        self._devices.append(device)

    def draw(self, wanted: int, eligible: Callable[[int], bool] | None) -> list[int]:
        """Take as many as are wanted and eligible. Those drawn, eligible or not, move to the list's end."""
        drawn: list[int] = []
        idle, undrawn = self._devices, len(self._devices)
        while undrawn and len(drawn) < wanted:
            place = derive(self.seed, "pick", self._draws) % undrawn
            self._draws += 1
            undrawn -= 1
            device = idle[place]
            if eligible is None or eligible(device):
                drawn.append(device)
                idle[place] = idle[undrawn]
                idle[undrawn] = idle[-1]
                idle.pop()
            else:
                idle[place], idle[undrawn] = idle[undrawn], device
        return drawn

    def state(self) -> dict[str, Any]:
        return {"draws": self._draws, "idle": torch.tensor(self._devices, dtype=torch.int32)}

    def restore(self, state: dict[str, Any]) -> None:
        self._draws, self._devices = state["draws"], state["idle"].tolist()
