"""The only place that runs SGD: `perform` answers a command, and the same command always gives the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedasmu.data.augment import augmented
from fedasmu.data.examples import Examples
from fedasmu.data.federated import FederatedData
from fedasmu.engines.contract import Engine
from fedasmu.engines.goal import Goal
from fedasmu.engines.native import NativeEngine
from fedasmu.engines.optimiser import PLAIN, Optimiser
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.engines.rule import Rule
from fedasmu.protocol import Computation, Evaluated, Probe, Probed, Train, Trained, Workload
from fedasmu.seeding import derive
from fedasmu.vector import Layout

CLASSIFY = Goal()
FROM_ZEROS = Optimiser(momentum=0.5)  # whatever its momentum, what it remembers of a first step is the gradient


def batches(shard: Tensor, work: Workload, seed: int, steps: range) -> list[Tensor]:
    """The indices of each of these steps' examples. Every epoch has its own order, from the task's seed."""
    per_epoch = work.steps_per_epoch
    chosen: list[Tensor] = []
    for epoch in range(steps.start // per_epoch, -(-steps.stop // per_epoch)):
        generator = torch.Generator().manual_seed(derive(seed, "epoch", epoch))
        order = shard[torch.randperm(len(shard), generator=generator)]
        first, last = max(steps.start - epoch * per_epoch, 0), min(steps.stop - epoch * per_epoch, per_epoch)
        chosen.extend(order[step * work.batch : (step + 1) * work.batch] for step in range(first, last))
    return chosen


def calibration(targets: Tensor, classes: int) -> Tensor:
    """s log((n_c + 1) / (n + C)): what is added to the outputs of a device that trains calibrated. How frequent its
    classes are is then no longer for the network to learn, and a class that it lacks is not pushed down.

    s is the share of the classes that it has: one that has a single class would otherwise have nothing left to teach.
    """
    counts = torch.bincount(targets, minlength=classes).to(torch.float32)
    return (counts > 0).sum() / classes * torch.log((counts + 1) / (len(targets) + classes))


def slope(gradient: Tensor, start: Tensor, end: Tensor) -> float:
    """<gradient, end - start>; a gradient is of the trainable part, which comes first."""
    return float(torch.dot(gradient, (end - start)[: len(gradient)]))


class Trainer:
    """Performs commands for any device of the federation. Every worker process has one.

    An accelerator is first touched when a command is performed, so in the worker: it would not survive the fork.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        data: FederatedData,
        batch: int,
        epochs: int,
        device: str = "cpu",
        native: NativeEngine | None = None,
        augment: str = "none",
        optimiser: Optimiser = PLAIN,
        goal: Goal = CLASSIFY,
    ) -> None:
        self._module, self._layout, self._given, self._place = module, layout, data, torch.device(device)
        self.batch, self.epochs, self.augment, self.native = batch, epochs, augment, native
        self.optimiser, self.goal = optimiser, goal
        self._part: Examples | None = None  # of the test data

    def __getstate__(self) -> dict[str, Any]:
        """Without what the process that unpickles it makes for itself."""
        return {name: value for name, value in vars(self).items() if name not in ("torch", "data")} | {"_part": None}

    @cached_property
    def torch(self) -> TorchEngine:
        return TorchEngine(self._module, self._layout, self._place, self.goal.loss, self.batch)

    @cached_property
    def data(self) -> FederatedData:
        given, place = self._given, self._place
        return replace(given, train=given.train.to(place), test=given.test.to(place))

    @property
    def engine(self) -> Engine:
        return self.torch if self.native is None or self.native.untrainable else self.native

    def perform(self, command: Computation, device: int, seed: int) -> Trained | Probed | Evaluated:
        """`seed` is the task's: what is random in a command (dropout) depends on it and on the command's steps."""
        with torch.random.fork_rng(devices=[]):
            if isinstance(command, Train):
                self._seed(derive(seed, "train", command.steps.start))
                return self._train(command, device, seed)
            if isinstance(command, Probe):
                self._seed(derive(seed, "train", command.step))
                return self._probe(command, device, seed)
        if device >= 0 and self.data.held:
            return self._evaluate(command.vector, self.data.train.subset(self.data.held[device]))
        return self._evaluate(command.vector, self._some(command.subset) if command.subset else self.data.test)

    def _seed(self, seed: int) -> None:
        """Of what dropout draws. `torch.manual_seed` sees to every kind of accelerator that there might be, and where
        none is used that takes longer than a step of a small network.
        """
        if self._place.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _some(self, count: int) -> Examples:
        if len(self._part or ()) != count:
            self._part = self.data.test.some(count)
        assert self._part is not None
        return self._part

    def _evaluate(self, vector: Tensor, examples: Examples) -> Evaluated:
        count = len(examples)
        if self.goal.is_plain:
            loss, correct = (self.native or self.torch).evaluate(vector, examples)
            return Evaluated(loss / count, correct / count, count)
        outputs, targets = self.torch.outputs(vector, examples), examples.targets
        return Evaluated(float(self.goal.loss(outputs, targets)), float(self.goal.metric(outputs, targets)), count)

    def _train(self, command: Train, device: int, seed: int) -> Trained:
        if self.goal.calibrated:
            command = replace(command, calibrated=True)
        examples, chosen = self._batches(device, seed, command.steps)
        vector = command.vector.clone()
        anchor = command.vector if command.anchor is None else command.anchor
        terms: dict[str, Any] = {"pull": command.pull, "anchor": anchor, "mask": command.mask}
        if command.calibrated and self.goal.classifies:
            terms["shift"] = self._shift(device)
        engine = self.engine if self.engine.supports(command.objective) else self.torch
        rule = Rule.of(self.optimiser, self._layout.trainable, command.state, command.steps.start)
        loss = engine.train(vector, examples, chosen, command.lr, **terms, objective=command.objective, rule=rule)
        return Trained(vector, loss / max(len(chosen), 1), rule.state)

    def _probe(self, command: Probe, device: int, seed: int) -> Probed:
        examples, (indices,) = self._batches(device, seed, range(command.step, command.step + 1))
        loss, gradient = self._measured(command, device, examples, indices)
        if gradient is None or command.between is None:
            return Probed(loss, gradient)
        return Probed(loss, slope=slope(gradient, *command.between))  # a number, where a gradient is a whole model

    def _measured(
        self, command: Probe, device: int, examples: Examples, indices: Tensor
    ) -> tuple[float, Tensor | None]:
        """The loss, and if wanted the gradient, of what a step of training would descend on."""
        if self.goal.calibrated:  # an engine knows shifts in training alone: so by a step that goes nowhere
            rule = Rule.of(FROM_ZEROS, self._layout.trainable, None, 0)
            here, shift = command.vector.clone(), self._shift(device)
            loss = self.engine.train(here, examples, [indices], 0.0, shift=shift, rule=rule)
            return loss, rule.state if command.gradient else None
        if command.gradient:
            return self.engine.gradient(command.vector, examples, indices)
        return self.engine.loss(command.vector, examples, indices), None

    def _shift(self, device: int) -> Tensor:
        return calibration(self.data.train.targets[self.data.shards[device]], self.data.classes)

    def _batches(self, device: int, seed: int, steps: range) -> tuple[Examples, list[Tensor]]:
        """What these steps see, for either engine: some examples, and the indices of each batch among them."""
        work = self.data.workload(device, self.batch, self.epochs)
        chosen = batches(self.data.shards[device], work, seed, steps)
        if self.augment == "none" or not chosen:
            return self.data.train, chosen
        return augmented(self.data.train, chosen, self.augment, [derive(seed, "augment", step) for step in steps])
