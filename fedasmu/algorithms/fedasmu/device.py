"""The device half of FedASMU: (7), (8) and (9), with the SGD of (4) before and after."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedasmu.algorithms.base import Learner
from fedasmu.algorithms.fedasmu import formulas
from fedasmu.algorithms.fedasmu.formulas import DeviceControls
from fedasmu.algorithms.fedasmu.notes import MergeNote, SlotBrief
from fedasmu.algorithms.fedasmu.slots import QTable, heuristic
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Fetch, Memory, Model, Probe, Probed, Report, Session, Task, Train, Trained, Workload

if TYPE_CHECKING:
    from fedasmu.algorithms.fedasmu.settings import FedASMU


class Merging(Learner):
    """The device half: train, ask for a fresh model at the slot, merge it, train on."""

    def __init__(self, settings: FedASMU) -> None:
        self.settings = settings
        self._gamma, self._upsilon = settings.guard(settings.gamma0), settings.guard(settings.upsilon0)

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        settings, start = self.settings, task.model.vector
        gradient: Tensor | None = None
        if settings.server_gradient == "uploaded":
            probed: Probed = yield Probe(start, 0, gradient=True, free=True)
            gradient = probed.gradient
        units = settings.units(work)
        if not settings.merge or units < 2:
            trained: Trained = yield Train(start, range(work.steps), task.lr)
            return Report(trained.vector, work.examples, trained.loss, table(MergeNote(gradient)))
        action, slot = self._slot(task, units, memory)
        cut = slot * (work.steps // units)
        first: Trained = yield Train(start, range(cut), task.lr)
        fresh: Model | None = yield Fetch()
        if fresh is None:
            vector, note = first.vector, MergeNote(gradient, slot)
        else:
            vector, outcome = yield from self._merge(first.vector, fresh, task, cut, memory)
            note = MergeNote(gradient, slot, cut, **outcome)
            self._learn(action, slot, outcome["reward"], units, memory)
        second: Trained = yield Train(vector, range(cut, work.steps), task.lr)
        loss = (first.loss * cut + second.loss * (work.steps - cut)) / work.steps
        return Report(second.vector, work.examples, loss, table(note))

    def _merge(
        self, vector: Tensor, fresh: Model, task: Task, cut: int, memory: Memory
    ) -> Generator[Probe, Probed, tuple[Tensor, dict[str, float]]]:
        """(7), (8), (9): merge, learn gamma and upsilon from the gradient, and give the reward. What the note says of
        it comes back with the merged model.
        """
        settings, origin = self.settings, task.model.version
        controls = DeviceControls(memory.get("gamma", settings.gamma0), memory.get("upsilon", settings.upsilon0))
        before: Probed = yield Probe(vector, cut)
        towards = vector, fresh.vector
        if settings.device_order == "before_merge":
            probed: Probed = yield Probe(task.model.vector, cut, gradient=True, between=towards)
            controls = self._adjusted(controls, fresh.version, origin, probed)
        phi = settings.bounded_phi(formulas.phi(controls, fresh.version, origin))
        beta = settings.bounded_beta(formulas.squash(settings.mu_beta, phi))
        merged = torch.add(vector, fresh.vector - vector, alpha=beta)
        after: Probed = yield Probe(merged, cut, gradient=True, free=True, between=towards)
        if settings.device_order == "after_merge":
            controls = self._adjusted(controls, fresh.version, origin, after)
        memory["gamma"], memory["upsilon"] = controls.gamma, controls.upsilon
        reward = before.loss - after.loss
        return merged, {"beta": beta, "reward": reward, "gamma": controls.gamma, "upsilon": controls.upsilon}

    def _adjusted(self, controls: DeviceControls, fresh: int, origin: int, probed: Probed) -> DeviceControls:
        """(9): one step of gradient descent on gamma and upsilon."""
        settings = self.settings
        assert probed.slope is not None
        phi = settings.bounded_phi(formulas.phi(controls, fresh, origin))
        outer = formulas.squash_slope(settings.mu_beta, phi) * probed.slope
        inner = formulas.phi_gradient(controls, fresh, origin)
        return DeviceControls(
            self._gamma.moved(controls.gamma, settings.lr_gamma, outer * inner[0]),
            self._upsilon.moved(controls.upsilon, settings.lr_upsilon, outer * inner[1]),
        )

    def _slot(self, task: Task, units: int, memory: Memory) -> tuple[int, int]:
        """The action taken (-1 where none is) and the slot."""
        settings = self.settings
        if settings.slots == "fixed":
            return -1, max(1, min(units - 1, settings.fixed_slot))
        if settings.slots != "learned":
            return -1, heuristic(settings.slots, units)
        if "slot" in memory:
            return self._table(memory, units).choose(task.seed)
        offered = of_table(SlotBrief, task.note).slot
        return -1, heuristic("middle", units) if offered is None else offered  # it may have lost its memory

    def _learn(self, action: int, slot: int, reward: float | None, units: int, memory: Memory) -> None:
        if self.settings.slots != "learned":
            return
        if action < 0:
            memory["slot"] = slot
        elif reward is not None and math.isfinite(reward):
            self._table(memory, units).learn(action, slot, reward)

    def _table(self, memory: Memory, units: int) -> QTable:
        return QTable(memory, units, self.settings.q_rate, self.settings.q_discount, self.settings.epsilon)
