"""How a local step follows from its gradient: SGD, with momentum if wanted, or Adam (Kingma and Ba, ICLR 2015).

With g = mask * (gradient + pull * (w - anchor) + weight_decay * w), as PyTorch's optimisers have it:

    sgd:   w -= lr * v,   v = momentum * v + g
    adam:  w -= lr * m' / (sqrt(v') + eps),   m = b1 * m + (1 - b1) * g,   v = b2 * v + (1 - b2) * g^2,
           m' = m / (1 - b1^t),   v' = v / (1 - b2^t),   t the number of the task's step, from 1

What is remembered (v, or m and v) begins with zeros in every task: docs/decisions/0051. The native engine has the same
formulas in step.h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedasmu.engines.optimiser import PLAIN, Optimiser


@dataclass(frozen=True)
class Rule:
    """The optimiser of a training, what it remembers (written to), and how many steps of the task are done."""

    optimiser: Optimiser = PLAIN
    state: Tensor | None = None
    done: int = 0

    @classmethod
    def of(cls, optimiser: Optimiser, trainable: int, before: Tensor | None, done: int) -> Rule:
        """`before` is the state that an earlier part of the task has left; None: it begins with zeros."""
        if not optimiser.memories:
            return cls(optimiser, None, done)
        state = torch.zeros(optimiser.memories * trainable) if before is None else before.clone()
        return cls(optimiser, state, done)

    def memories(self) -> list[Tensor]:
        """Each of what is remembered, for all parameters."""
        return [] if self.state is None else list(self.state.view(self.optimiser.memories, -1))

    def step(self, parameter: Tensor, gradient: Tensor, memories: list[Tensor], lr: float, number: int) -> None:
        """One step of one parameter, in place; `number` counts the task's steps from 1."""
        optimiser = self.optimiser
        if optimiser.optimiser == "adam":
            (first, second), (b1, b2) = memories, optimiser.betas
            first.mul_(b1).add_(gradient, alpha=1 - b1)
            second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            root = (second / (1 - b2**number)).sqrt_().add_(optimiser.eps)
            parameter.addcdiv_(first, root, value=-lr / (1 - b1**number))
        elif memories:
            memories[0].mul_(optimiser.momentum).add_(gradient)
            parameter.sub_(memories[0], alpha=lr)
        else:
            parameter.sub_(gradient, alpha=lr)


SGD = Rule()
