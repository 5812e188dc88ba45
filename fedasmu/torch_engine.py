"""The engine that runs any module: PyTorch's own forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as summed_cross_entropy

from fedasmu.data.examples import Examples
from fedasmu.goal import Loss, cross_entropy
from fedasmu.memory import keep_freed_memory
from fedasmu.protocol import Objective
from fedasmu.rule import SGD, Rule
from fedasmu.vector import Layout

EVALUATION_BATCH = 500  # larger ones leave the cache, smaller ones pay more overhead
CHANNELS_LAST = 32  # images in a batch from which PyTorch is faster on them pixel by pixel than channel by channel


class TorchEngine:
    """A network whose parameters are views of one flat vector.

    The gradients are not: backward would add them to what is there, so that had to be zeroed first, and in small
    batches this costs a wide layer up to a third of its time. So each step takes the tensors that backward makes.
    """

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device, loss: Loss = cross_entropy) -> None:
        keep_freed_memory()
        self._loss = loss
        self.module, self._layout = module.to(device), layout
        self.vector = torch.zeros(layout.size, device=device)
        layout.attach(self.module, self.vector)
        parameters = dict(self.module.named_parameters())
        self._parameters = [parameters[entry.name] for entry in layout.parameters]
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
        rule: Rule = SGD,
    ) -> float:
        """A step for each batch, in place on `vector`; the sum of the batches' mean losses."""
        self._load(vector)
        anchors = None if anchor is None or not pull else self._parts(anchor)
        masks = None if mask is None else self._parts(mask)
        kept = [memory.to(self.vector.device) for memory in rule.memories()]
        memories = [self._parts(memory) for memory in kept]
        total = torch.zeros((), device=self.vector.device)
        for number, indices in enumerate(batches, rule.done + 1):
            loss = self._backward(examples, indices, objective)
            with torch.no_grad():
                total += loss
                self._descend(lr, pull, anchors, masks, rule, memories, number)
        vector.copy_(self.vector)
        for place, memory in zip(rule.memories(), kept, strict=True):
            place.copy_(memory)
        return float(total)

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        self._load(vector)
        loss = float(self._backward(examples, indices, None))
        return loss, torch.cat([gradient.flatten() for gradient in self._gradients()]).cpu()

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        self._load(vector)
        self.module.train()
        inputs, targets = _batch(examples, indices)
        with torch.no_grad():
            return float(self._loss(self.module(inputs), targets))

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses, and how many are classified right."""
        self._load(vector)
        self.module.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(examples), EVALUATION_BATCH):
                inputs, targets = _batch(examples, slice(start, start + EVALUATION_BATCH))
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
            return torch.cat([self.module(_batch(examples, slice(at, at + EVALUATION_BATCH))[0]) for at in starts])

    def _load(self, vector: Tensor) -> None:
        self.vector.copy_(vector)
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    def _parts(self, values: Tensor) -> list[Tensor]:
        """Of each parameter, in its shape."""
        values = values.to(self.vector.device)
        return [entry.view(values) for entry in self._layout.parameters]

    def _backward(self, examples: Examples, indices: Tensor, objective: Objective | None) -> Tensor:
        for parameter in self._parameters:
            parameter.grad = None
        self.module.train()
        inputs, targets = _batch(examples, indices)
        loss = objective(self.module, inputs, targets) if objective else self._loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def _descend(
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


def _batch(examples: Examples, indices: Tensor | slice) -> tuple[Tensor, Tensor]:
    inputs, targets = examples.batch(indices)
    if inputs.dim() == 4 and len(inputs) >= CHANNELS_LAST:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs, targets
