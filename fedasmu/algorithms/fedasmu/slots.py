"""When a device asks for a fresh global model: FedASMU's reinforcement-learned time slot.

A slot is the number of units (SGD steps or epochs) that are done when the request leaves: 1 to units - 1. For the first
merge of a device a small LSTM on the server proposes it, trained by REINFORCE (5); afterwards a Q-table on the
device moves it by one (6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedasmu.algorithms.base import Federation
from fedasmu.algorithms.fedasmu import hazard
from fedasmu.seeding import derive, uniform

ACTIONS = (-1, 0, 1)  # minus, stay, add


def heuristic(name: str, units: int) -> int:
    """The paper's H1, H2 and H3: after the first unit, in the middle, after the last but one."""
    return {"first": 1, "middle": math.ceil(units / 2), "last": units - 1}[name]


@lru_cache(10_000)
def legal(slot: int, units: int) -> tuple[int, ...]:
    """The actions (by index) that keep the slot within 1 .. units - 1."""
    return tuple(index for index, move in enumerate(ACTIONS) if 1 <= slot + move <= units - 1)


def q_update(value: float, reward: float, best_next: float, rate: float, discount: float) -> float:
    """(6): Q + rate (r + discount max Q' - Q)"""
    return value + rate * (reward + discount * best_next - value)


class QTable:
    """Lives in a device's memory: a slot, and three values for every slot it has been at."""

    def __init__(self, memory: dict[str, Any], units: int, rate: float, discount: float, epsilon: float) -> None:
        self.memory, self.units = memory, units
        self.rate, self.discount, self.epsilon = rate, discount, epsilon

    @property
    def _slot(self) -> int:
        """Where the device is; a real one may have come back with fewer examples, and so fewer units."""
        return min(int(self.memory["slot"]), self.units - 1)

    def row(self, slot: int) -> list[float]:
        table, key = self.memory.setdefault("q", {}), str(slot)
        if key not in table:
            table[key] = [0.0] * len(ACTIONS)
        values: list[float] = table[key]
        return values

    def choose(self, seed: int) -> tuple[int, int]:
        """Epsilon-greedy among the legal actions; equals are drawn from. Gives the action and the slot it leads to."""
        slot = self._slot
        actions = legal(slot, self.units)
        if uniform(seed, "explore") >= self.epsilon:
            row = self.row(slot)
            best = max([row[action] for action in actions])
            actions = tuple([action for action in actions if row[action] == best])
        action = actions[derive(seed, "action") % len(actions)]
        return action, slot + ACTIONS[action]

    def learn(self, action: int, slot: int, reward: float) -> None:
        """The action led to `slot`, and merging there gave this reward."""
        row, reached = self.row(self._slot), self.row(slot)
        best_next = max([reached[index] for index in legal(slot, self.units)])
        row[action] = q_update(row[action], reward, best_next, self.rate, self.discount)
        self.memory["slot"] = slot


def standardised(federation: Federation) -> Callable[[int], list[float]]:
    """What the meta model knows of a device: examples, batch, and its times to download, train and upload.

    Logarithms, with the fleet's mean taken away and divided by its spread, if it has one. A thousand devices speak for
    the fleet.
    """

    def raw(device: int) -> list[float]:
        work = federation.workload(device)
        return [math.log(max(known, 1e-6)) for known in (work.examples, work.batch, *federation.seconds(device))]

    known = np.array([raw(device) for device in range(min(federation.devices, 1000))])
    mean, spread = known.mean(0), known.std(0)
    spread[spread < 1e-6] = 1.0  # the same for all devices: 0, not magnified rounding
    scale = list(zip(mean.tolist(), spread.tolist(), strict=True))
    return lambda device: [(x - middle) / width for x, (middle, width) in zip(raw(device), scale, strict=True)]


class SlotPolicy:
    """The meta model on the server: a distribution over a device's slots, from what is known about the device.

    Its network (hazard.py) reads the positions one by one. Its output layer starts at zero around an offset that makes
    every slot equally likely.
    """

    def __init__(
        self,
        features: Callable[[int], Sequence[float]],
        units: Callable[[int], int],
        seed: int,
        rate: float,
        rho: float,
        epsilon: float,
        sample: bool,
        normalise: bool = False,
    ) -> None:
        self.features, self.units, self.seed = features, units, seed
        self.rate, self.rho, self.epsilon, self.sample = rate, rho, epsilon, sample
        self.normalise = normalise  # rewards shrink as training goes on: divide advantages by their running size
        self.baseline = self.square = 0.0
        self.draws = 0
        self.weights = hazard.initial(len(features(0)) + 1, derive(seed, "slot policy"))
        self._learned = False  # whether the output layer has moved from zero

    def inputs(self, device: int) -> hazard.Array:
        """What the network reads: for each slot all that is known of the device, and how far through the task it is."""
        units = self.units(device)
        rows = np.empty((units - 1, len(self.weights.of_input[0])))
        rows[:, :-1] = self.features(device)
        rows[:, -1] = np.arange(1, units) / units
        return rows

    def probabilities(self, device: int) -> hazard.Array:
        """P(slot = 1 .. units - 1)"""
        return hazard.probabilities(self.weights, self.inputs(device))

    def propose(self, device: int) -> int:
        self.draws += 1
        slots = self.units(device) - 1
        if self.sample and not self._learned:  # all slots are equally likely, and the network need not be asked
            return 1 + int(slots * uniform(self.seed, "slot", self.draws))
        if self.sample:
            return 1 + hazard.drawn(self.weights, self.inputs(device), uniform(self.seed, "slot", self.draws))
        if uniform(self.seed, "slot explore", self.draws) < self.epsilon:
            return 1 + derive(self.seed, "slot", self.draws) % slots
        return 1 + int(self.probabilities(device).argmax())

    def learn(self, device: int, slot: int, reward: float) -> None:
        """(5) with the baseline b as it was before this reward, then b <- (1 - rho) b + rho r."""
        if not math.isfinite(reward):
            return
        advantage = reward - self.baseline
        self.square = advantage**2 if not self.square else (1.0 - self.rho) * self.square + self.rho * advantage**2
        if self.normalise and self.square:
            advantage /= math.sqrt(self.square)
        if advantage:
            slopes = hazard.gradient(self.weights, self.inputs(device), slot - 1)
            for weights, slope in zip(self.weights, slopes, strict=True):
                weights += self.rate * advantage * slope
            self._learned = True
        self.baseline = (1.0 - self.rho) * self.baseline + self.rho * reward

    def state(self) -> dict[str, Any]:
        scalars = {"baseline": self.baseline, "square": self.square, "draws": self.draws}
        return {"vector": torch.from_numpy(np.concatenate([part.ravel() for part in self.weights])), **scalars}

    def restore(self, state: dict[str, Any]) -> None:
        vector, place = state["vector"].double().numpy(), 0
        for part in self.weights:
            part[...] = vector[place : place + part.size].reshape(part.shape)
            place += part.size
        self._learned = bool(self.weights.output.any() or self.weights.offset.any())
        self.baseline, self.square, self.draws = state["baseline"], state["square"], state["draws"]
