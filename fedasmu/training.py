"""The only place that runs SGD: `perform` answers a command, and the same command always gives the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu.data.augment import augmented
from fedasmu.data.examples import Examples
from fedasmu.data.federated import FederatedData
from fedasmu.errors import UserError
from fedasmu.models.contrast import Contrast
from fedasmu.native import Network, Unsupported
from fedasmu.protocol import Computation, Evaluated, Objective, Probe, Probed, Train, Trained, Workload
from fedasmu.seeding import derive
from fedasmu.vector import Layout

EVALUATION_BATCH = 500  # larger ones leave the cache, smaller ones pay more overhead


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


class TorchEngine:
    """A network whose parameters and gradients are views of one flat vector each."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module.to(device)
        self.vector = torch.zeros(layout.size, device=device)
        self.gradient_ = torch.zeros(layout.trainable, device=device)
        self.parameters = self.vector[: layout.trainable]
        layout.attach(self.module, self.vector, self.gradient_)
        # Counters, such as those of BatchNorm(momentum=None), are not in the vector: no command may see another's.
        counters = [buffer for buffer in self.module.buffers() if not buffer.is_floating_point()]
        self._counters = [(buffer, buffer.clone()) for buffer in counters]

    def train(
        self,
        vector: Tensor,
        examples: Examples,
        batches: Sequence[Tensor],
        lr: float,
        *,
        pull: float = 0.0,
        anchor: Tensor | None = None,
        mask: Tensor | None = None,
        objective: Objective | None = None,
    ) -> float:
        """SGD in place on `vector`, a step for each batch; the sum of the batches' mean losses."""
        self._load(vector)
        place, trainable = self.vector.device, len(self.parameters)
        anchor = None if anchor is None or not pull else anchor[:trainable].to(place)
        mask = None if mask is None else mask[:trainable].to(place)
        parameters, gradient, total = self.parameters, self.gradient_, torch.zeros((), device=place)
        for indices in batches:
            loss = self._backward(examples, indices, objective)
            with torch.no_grad():
                total += loss
                if anchor is not None:
                    gradient.add_(parameters, alpha=pull).sub_(anchor, alpha=pull)
                if mask is not None:
                    gradient.mul_(mask)
                parameters.sub_(gradient, alpha=lr)
        vector.copy_(self.vector)
        return float(total)

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        self._load(vector)
        loss = float(self._backward(examples, indices, None))
        return loss, self.gradient_.cpu().clone()

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        self._load(vector)
        self.module.train()
        inputs, targets = examples.batch(indices)
        with torch.no_grad():
            return float(cross_entropy(self.module(inputs), targets))

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses, and how many are classified right."""
        self._load(vector)
        self.module.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(examples), EVALUATION_BATCH):
                inputs, targets = examples.batch(slice(start, start + EVALUATION_BATCH))
                logits = self.module(inputs)
                loss += float(cross_entropy(logits, targets, reduction="sum"))
                correct += int((logits.argmax(1) == targets).sum())
        return loss, correct

    def _load(self, vector: Tensor) -> None:
        self.vector.copy_(vector)
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    def _backward(self, examples: Examples, indices: Tensor, objective: Objective | None) -> Tensor:
        self.gradient_.zero_()
        self.module.train()
        inputs, targets = examples.batch(indices)
        loss = objective(self.module, inputs, targets) if objective else cross_entropy(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def native_network(
    setting: str, module: nn.Module, layout: Layout, shape: tuple[int, ...], device: str
) -> tuple[Network | None, str]:
    """The module compiled for the native engine, or None; and in one line which engine runs, and why."""
    if setting == "torch":
        return None, "engine: PyTorch, as asked"
    try:
        if device != "cpu":
            raise Unsupported(f"the native engine runs on the cpu, not on {device}")
        network = Network(module, layout, shape)
    except Unsupported as reason:
        if setting == "native":
            raise UserError(f"engine = 'native': {reason}") from None
        return None, f"engine: PyTorch, because {reason}"
    if network.untrainable is None:
        return network, "engine: native"
    if setting == "native":
        raise UserError(f"engine = 'native': {network.untrainable}")
    return network, f"engine: PyTorch to train, because {network.untrainable}; native to evaluate"


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
        native: Network | None = None,
        augment: str = "none",
    ) -> None:
        self._module, self._layout, self._given, self._place = module, layout, data, torch.device(device)
        self.batch, self.epochs, self.augment, self.native = batch, epochs, augment, native

    def __getstate__(self) -> dict[str, Any]:
        """Without what the process that unpickles it makes for itself."""
        return {name: value for name, value in vars(self).items() if name not in ("torch", "data")}

    @cached_property
    def torch(self) -> TorchEngine:
        return TorchEngine(self._module, self._layout, self._place)

    @cached_property
    def data(self) -> FederatedData:
        given, place = self._given, self._place
        return replace(given, train=given.train.to(place), test=given.test.to(place))

    @property
    def engine(self) -> TorchEngine | Network:
        return self.torch if self.native is None or self.native.untrainable else self.native

    def perform(self, command: Computation, device: int, seed: int) -> Trained | Probed | Evaluated:
        """`seed` is the task's: what is random in a command (dropout) depends on it and on the command's steps."""
        with torch.random.fork_rng(devices=[]):
            if isinstance(command, Train):
                torch.manual_seed(derive(seed, "train", command.steps.start))
                return self._train(command, device, seed)
            if isinstance(command, Probe):
                torch.manual_seed(derive(seed, "train", command.step))
                return self._probe(command, device, seed)
        loss, correct = (self.native or self.torch).evaluate(command.vector, self.data.test)
        count = len(self.data.test)
        return Evaluated(loss / count, correct / count)

    def _train(self, command: Train, device: int, seed: int) -> Trained:
        examples, chosen = self._batches(device, seed, command.steps)
        vector = command.vector.clone()
        anchor = command.vector if command.anchor is None else command.anchor
        terms: dict[str, Any] = {"pull": command.pull, "anchor": anchor, "mask": command.mask}
        objective, engine = command.objective, self.engine
        if objective is None:
            loss = engine.train(vector, examples, chosen, command.lr, **terms)
        elif isinstance(objective, Contrast) and isinstance(engine, Network) and engine.contrasts:
            loss = engine.train(vector, examples, chosen, command.lr, **terms, contrast=objective)
        else:  # any other loss of its own is written in PyTorch
            loss = self.torch.train(vector, examples, chosen, command.lr, **terms, objective=objective)
        return Trained(vector, loss / max(len(chosen), 1))

    def _probe(self, command: Probe, device: int, seed: int) -> Probed:
        examples, (indices,) = self._batches(device, seed, range(command.step, command.step + 1))
        if command.gradient:
            return Probed(*self.engine.gradient(command.vector, examples, indices))
        return Probed(self.engine.loss(command.vector, examples, indices))

    def _batches(self, device: int, seed: int, steps: range) -> tuple[Examples, list[Tensor]]:
        """What these steps see, for either engine: some examples, and the indices of each batch among them."""
        work = self.data.workload(device, self.batch, self.epochs)
        chosen = batches(self.data.shards[device], work, seed, steps)
        if self.augment == "none" or not chosen:
            return self.data.train, chosen
        return augmented(self.data.train, chosen, self.augment, [derive(seed, "augment", step) for step in steps])
