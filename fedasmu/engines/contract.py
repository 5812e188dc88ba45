"""What an engine is, and which one a run gets: the same settings always give the same one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from fedasmu.data.examples import Examples
from fedasmu.engines.native import NativeEngine, Unsupported
from fedasmu.engines.rule import SGD, Rule
from fedasmu.errors import UserError
from fedasmu.protocol import Objective
from fedasmu.vector import Layout


class Engine(Protocol):
    """Trains and measures a network whose parameters are a vector."""

    def supports(self, objective: Objective | None) -> bool:
        """Whether it can minimise this; None is the cross-entropy, which all can."""

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
        """A step for each batch of indices, in place: w -= lr * mask * (gradient + pull * (w - anchor)), unless the
        rule says otherwise. `shift` has a number for each class, which is added to its output before the loss: none for
        what a network has more outputs than there are classes.

        Returns the sum over the steps of the batch's mean loss before the step.
        """

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        """The mean loss of one batch, and its gradient."""

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        """The mean loss of one batch, as a step of training would find it."""

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses over all examples, and how many are classified correctly."""


def native_engine(
    setting: str,
    module: nn.Module,
    layout: Layout,
    shape: tuple[int, ...],
    batch: int,
    device: str,
    instructions: str = "auto",
    unknown: str = "",
) -> tuple[NativeEngine | None, str]:
    """The module compiled for the native engine, or None; and in one line which engine runs, and why.

    `unknown` is what is asked for and it does not know, if there is any.
    """
    if setting == "torch":
        return None, "engine: PyTorch, as asked"
    try:
        if unknown:
            raise Unsupported(unknown)
        if device != "cpu":
            raise Unsupported(f"the native engine runs on the cpu, not on {device}")
        network = NativeEngine(module, layout, shape, instructions)
        if setting == "auto" and (reason := network.slow(batch)):
            raise Unsupported(reason)
    except Unsupported as reason:
        if setting == "native":
            raise UserError(f"engine = 'native': {reason}") from None
        return None, f"engine: PyTorch, because {reason}"
    if network.untrainable is None:
        return network, f"engine: native ({network.instructions})"
    if setting == "native":
        raise UserError(f"engine = 'native': {network.untrainable}")
    return network, f"engine: PyTorch to train, because {network.untrainable}; native to evaluate"


def name(native: NativeEngine | None) -> str:
    """Which engines run, without reasons: with the processor, what the last digits of a number depend on."""
    if native is None:
        return "PyTorch"
    engine = f"native ({native.instructions})"
    return engine if native.untrainable is None else f"PyTorch, {engine} to evaluate"
