"""The engine that runs any module: PyTorch's own forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as summed_cross_entropy
from torch.nn.functional import pad

from fedasmu.data.examples import Examples
from fedasmu.engines.goal import Loss, cross_entropy
from fedasmu.engines.rule import SGD, Rule
from fedasmu.protocol import Objective
from fedasmu.system.memory import keep_freed_memory
from fedasmu.vector import BLOCK, Layout

EVALUATION_BATCH = 500  # larger ones leave the cache, smaller ones pay more overhead
# PyTorch is faster on images pixel by pixel than channel by channel where convolutions have few weights in all, or
# many, but not too many for each image of a batch: measured, on the networks of the paper (docs/decisions/0062).
FEW, MANY, TOO_MANY = 1 << 12, 1 << 16, 1 << 18


class TorchEngine:
    """A network whose parameters are views of one flat vector.

    The gradients are not: backward would add them to what is there, so that had to be zeroed first, and in small
    batches this costs a wide layer up to a third of its time. So each step takes the tensors that backward makes.
    Nor are the convolutions' weights where images are read pixel by pixel: they then lie in memory as the images do, or
    PyTorch would turn them, and their gradients, in every step. With which of the two it is follows from `batch`, that
    of the run, so that a training cut in two, or an epoch's last batch, computes as the rest does.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device, loss: Loss = cross_entropy, batch: int = 32
    ) -> None:
        keep_freed_memory()
        self._loss = loss
        self.module, self._layout = module.to(device), layout
        self.vector = torch.zeros(layout.size, device=device)
        layout.attach(self.module, self.vector)
        parameters = dict(self.module.named_parameters())
        self._parameters = [parameters[entry.name] for entry in layout.parameters]
        filters = [entry for entry in layout.parameters if len(entry.shape) == 4]
        weights = sum(entry.size for entry in filters)
        self._by_pixel = device.type == "cpu" and (0 < weights <= FEW or MANY <= weights <= TOO_MANY * batch)
        self._turned = [(parameters[entry.name], entry) for entry in filters if self._by_pixel]
        # Counters, such as those of BatchNorm(momentum=None), are not in the vector: no command may see another's.
        counters = [buffer for buffer in self.module.buffers() if not buffer.is_floating_point()]
        self._counters = [(buffer, buffer.clone()) for buffer in counters]

    def supports(self, objective: Objective | None) -> bool:
        return True

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
        shift: Tensor | None = None,
        rule: Rule = SGD,
    ) -> float:
        """A step for each batch, in place on `vector`; the sum of the batches' mean losses."""
        home = self._move_into(vector)
        try:
            return self._descend(examples, batches, lr, pull, anchor, mask, objective, shift, rule)
        finally:
            self._move_out(home, vector)

    def _descend(
        self,
        examples: Examples,
        batches: Sequence[Tensor],
        lr: float,
        pull: float,
        anchor: Tensor | None,
        mask: Tensor | None,
        objective: Objective | None,
        shift: Tensor | None,
        rule: Rule,
    ) -> float:
        anchors = None if anchor is None or not pull else self._parts(anchor)
        masks = None if mask is None else self._parts(mask)
        shift = None if shift is None else shift.to(self.vector.device)
        kept = [memory.to(self.vector.device) for memory in rule.memories()]
        memories = [self._parts(memory) for memory in kept]
        total = torch.zeros((), device=self.vector.device)
        for number, indices in enumerate(batches, rule.done + 1):
            loss = self._backward(examples, indices, objective, shift)
            with torch.no_grad():
                total += loss
                self._step(lr, pull, anchors, masks, rule, memories, number)
        for place, memory, parts in zip(rule.memories(), kept, memories, strict=True):
            self._join(parts, memory)
            place.copy_(memory)
        return float(total)

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        self._load(vector)
        loss = float(self._backward(examples, indices))
        return loss, torch.cat([gradient.flatten() for gradient in self._gradients()]).cpu()

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        self._load(vector)
        self.module.train()
        inputs, targets = self._batch(examples, indices)
        with torch.no_grad():
            return float(self._loss(self.module(inputs), targets))

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses, and how many are classified right."""
        self._load(vector)
        self.module.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(examples), EVALUATION_BATCH):
                inputs, targets = self._batch(examples, slice(start, start + EVALUATION_BATCH))
                logits = self.module(inputs)
                loss += float(summed_cross_entropy(logits, targets, reduction="sum"))
                correct += int((logits.argmax(1) == targets).sum())
        return loss, correct

    def outputs(self, vector: Tensor, examples: Examples) -> Tensor:
        """What the network makes of all examples, in evaluation."""
        self._load(vector)
        self.module.eval()
        starts = range(0, len(examples), EVALUATION_BATCH)
        with torch.no_grad():
            return torch.cat([self.module(self._batch(examples, slice(at, at + EVALUATION_BATCH))[0]) for at in starts])

    def _load(self, vector: Tensor) -> None:
        self.vector.copy_(vector)
        self._begin(self.vector)

    def _move_into(self, vector: Tensor) -> Tensor:
        """The network at `vector`, to be trained. A large one is trained where it lies: each copy of it, in and out,
        costs as much as a tenth of a step.
        """
        if vector.numel() <= BLOCK or vector.device != self.vector.device:
            self._load(vector)
            return self.vector
        self._layout.attach(self.module, vector)
        self._begin(vector)
        return vector

    def _move_out(self, home: Tensor, vector: Tensor) -> None:
        """What was trained is in `vector`, and the network no longer."""
        for parameter, entry in self._turned:
            entry.view(home).copy_(parameter.data)
        if home is vector:
            self._layout.attach(self.module, self.vector)
        else:
            vector.copy_(home)

    def _begin(self, home: Tensor) -> None:
        for parameter, entry in self._turned:
            parameter.data = _by_pixel(entry.view(home))
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    def _parts(self, values: Tensor) -> list[Tensor]:
        """Of each parameter, in its shape, and in memory as it is."""
        values = values.to(self.vector.device)
        parts = [entry.view(values) for entry in self._layout.parameters]
        return [_by_pixel(part) if self._by_pixel and part.dim() == 4 else part for part in parts]

    def _join(self, parts: list[Tensor], values: Tensor) -> None:
        """What was written to the parts is in the values they were taken from."""
        for entry, part in zip(self._layout.parameters, parts, strict=True):
            if self._by_pixel and part.dim() == 4:
                entry.view(values).copy_(part)

    def _batch(self, examples: Examples, indices: Tensor | slice) -> tuple[Tensor, Tensor]:
        inputs, targets = examples.batch(indices)
        return _by_pixel(inputs) if self._by_pixel and inputs.dim() == 4 else inputs, targets

    def _backward(
        self, examples: Examples, indices: Tensor, objective: Objective | None = None, shift: Tensor | None = None
    ) -> Tensor:
        for parameter in self._parameters:
            parameter.grad = None
        if not self.module.training:
            self.module.train()
        inputs, targets = self._batch(examples, indices)
        if objective:
            loss = objective(self.module, inputs, targets)
        else:
            outputs = self.module(inputs)
            if shift is not None:
                outputs = outputs + pad(shift, (0, max(0, outputs.shape[1] - len(shift))))
            loss = self._loss(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def _step(
        self,
        lr: float,
        pull: float,
        anchors: list[Tensor] | None,
        masks: list[Tensor] | None,
        rule: Rule,
        memories: list[list[Tensor]],
        number: int,
    ) -> None:
        for at, (parameter, gradient) in enumerate(zip(self._parameters, self._gradients(), strict=True)):
            if anchors is not None:
                gradient.add_(parameter, alpha=pull).sub_(anchors[at], alpha=pull)
            if rule.optimiser.weight_decay:
                gradient.add_(parameter, alpha=rule.optimiser.weight_decay)
            if masks is not None:
                gradient.mul_(masks[at])
            rule.step(parameter, gradient, [memory[at] for memory in memories], lr, number)


def _by_pixel(values: Tensor) -> Tensor:
    """A copy with the channels of a pixel next to each other, where they are not yet. Not `contiguous`: of a single
    channel it would say that they are, and the convolution that gets it would not know in which order to answer.
    """
    return values.to(memory_format=torch.channels_last)
