"""When a device asks for a fresh global model: FedASMU's reinforcement-learned time slot.

A slot is the number of units (SGD steps or epochs) that are done when the request leaves: 1 to units - 1. For the first
merge of a device a small LSTM on the server proposes it, trained by REINFORCE (5); afterwards a Q-table on the
device moves it by one (6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedasmu.algorithms.base import Federation
from fedasmu.models.initialise import seeded
from fedasmu.seeding import derive, uniform
from fedasmu.vector import Layout

ACTIONS = (-1, 0, 1)  # minus, stay, add
HIDDEN = 32


def heuristic(name: str, units: int) -> int:
    """The paper's H1, H2 and H3: after the first unit, in the middle, after the last but one."""
    return {"first": 1, "middle": math.ceil(units / 2), "last": units - 1}[name]


def legal(slot: int, units: int) -> list[int]:
    """The actions (by index) that keep the slot within 1 .. units - 1."""
    return [index for index, move in enumerate(ACTIONS) if 1 <= slot + move <= units - 1]


def q_update(value: float, reward: float, best_next: float, rate: float, discount: float) -> float:
    """(6): Q + rate (r + discount max Q' - Q)"""
    return value + rate * (reward + discount * best_next - value)


class QTable:
    """Lives in a device's memory: a slot, and three values for every slot it has been at."""

    def __init__(self, memory: dict[str, Any], units: int, rate: float, discount: float, epsilon: float) -> None:
        self.memory, self.units = memory, units
        self.rate, self.discount, self.epsilon = rate, discount, epsilon

    def row(self, slot: int) -> list[float]:
        values: list[float] = self.memory.setdefault("q", {}).setdefault(str(slot), [0.0] * len(ACTIONS))
        return values

    def choose(self, seed: int) -> tuple[int, int]:
        """Epsilon-greedy among the legal actions; equals are drawn from. Gives the action and the slot it leads to."""
        slot = self.memory["slot"]
        actions = legal(slot, self.units)
        if uniform(seed, "explore") >= self.epsilon:
            best = max(self.row(slot)[action] for action in actions)
            actions = [action for action in actions if self.row(slot)[action] == best]
        action = actions[derive(seed, "action") % len(actions)]
        return action, slot + ACTIONS[action]

    def learn(self, action: int, slot: int, reward: float) -> None:
        """The action led to `slot`, and merging there gave this reward."""
        row = self.row(self.memory["slot"])
        best_next = max(self.row(slot)[index] for index in legal(slot, self.units))
        row[action] = q_update(row[action], reward, best_next, self.rate, self.discount)
        self.memory["slot"] = slot


def standardised(federation: Federation) -> Callable[[int], list[float]]:
    """What the meta model knows of a device: examples, batch, and its times to download, train and upload.

    Logarithms, with the fleet's mean taken away and divided by its spread, if it has one. A thousand devices speak for
    the fleet.
    """

    def raw(device: int) -> Tensor:
        work = federation.workload(device)
        known = [work.examples, work.batch, *federation.seconds(device)]
        return torch.tensor(known, dtype=torch.float64).clamp(min=1e-6).log()

    known = torch.stack([raw(device) for device in range(min(federation.devices, 1000))])
    mean, spread = known.mean(0), known.std(0, correction=0)
    spread[spread < 1e-6] = 1.0  # the same for all devices: 0, not magnified rounding
    return lambda device: ((raw(device) - mean) / spread).tolist()


class SlotPolicy:
    """The meta model on the server: a distribution over a device's slots, from what is known about the device.

    An LSTM reads the positions one by one and gives the hazard h_l of asking at l, so that
    P(slot = l) = h_l * prod_{k<l} (1 - h_k); the last slot takes the rest. Its output layer starts at zero around an
    offset that makes every slot equally likely.
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
        with seeded(derive(seed, "slot policy")):
            self.lstm = nn.LSTM(len(features(0)) + 1, HIDDEN, batch_first=True)
            self.output = nn.Linear(HIDDEN, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.network = nn.ModuleList([self.lstm, self.output])
        self.layout = Layout.of(self.network)

    def log_probabilities(self, device: int) -> Tensor:
        """log P(slot = 1 .. units - 1)"""
        units = self.units(device)
        positions = torch.arange(1, units) / units
        known = torch.tensor(self.features(device), dtype=torch.float32).expand(units - 1, -1)
        hidden, _ = self.lstm(torch.cat([known, positions[:, None]], dim=1)[None])
        left = torch.arange(units - 1, 0, -1)  # slots still to come, this one included
        logits = self.output(hidden)[0, :, 0] - torch.log((left - 1).clamp(min=1))
        ask, pass_by = nn.functional.logsigmoid(logits), nn.functional.logsigmoid(-logits)
        ask = torch.cat([ask[:-1], torch.zeros(1)])  # the last slot takes the rest
        return ask + torch.cat([torch.zeros(1), pass_by[:-1].cumsum(0)])

    def propose(self, device: int) -> int:
        self.draws += 1
        slots = self.units(device) - 1
        if not self.sample and uniform(self.seed, "slot explore", self.draws) < self.epsilon:
            return 1 + derive(self.seed, "slot", self.draws) % slots
        with torch.no_grad():
            probabilities = self.log_probabilities(device).exp()
        if not self.sample:
            return 1 + int(probabilities.argmax())
        drawn = int((probabilities.cumsum(0) < uniform(self.seed, "slot", self.draws)).sum())
        return 1 + min(drawn, slots - 1)

    def learn(self, device: int, slot: int, reward: float) -> None:
        """(5) with the baseline b as it was before this reward, then b <- (1 - rho) b + rho r."""
        if not math.isfinite(reward):
            return
        advantage = reward - self.baseline
        self.square = advantage**2 if not self.square else (1.0 - self.rho) * self.square + self.rho * advantage**2
        if self.normalise and self.square:
            advantage /= math.sqrt(self.square)
        self.network.zero_grad()
        self.log_probabilities(device)[slot - 1].backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=self.rate * advantage)
        self.baseline = (1.0 - self.rho) * self.baseline + self.rho * reward

    def state(self) -> dict[str, Any]:
        scalars = {"baseline": self.baseline, "square": self.square, "draws": self.draws}
        return {"vector": self.layout.read(self.network), **scalars}

    def restore(self, state: dict[str, Any]) -> None:
        named = dict(self.network.named_parameters())
        with torch.no_grad():
            for entry in self.layout.parameters:
                named[entry.name].copy_(entry.view(state["vector"]))
        self.baseline, self.square, self.draws = state["baseline"], state["square"], state["draws"]
