"""Training small networks several times faster than PyTorch does on one processor core.

`Network` compiles a module's layers for a C++ engine that keeps the batch as the innermost dimension: see
docs/explanation/engine.md. What the engine does not know raises `Unsupported`, and PyTorch runs instead.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedasmu.data.examples import Examples
from fedasmu.native import checks, library
from fedasmu.native.chain import Unsupported
from fedasmu.native.plan import plan
from fedasmu.vector import Layout

__all__ = ["Network", "Unsupported", "available"]


def available() -> str | None:
    """None if the engine can be used here, otherwise why not."""
    try:
        library.best()
    except OSError as error:
        return str(error)
    return None


class Network:
    """A module's layers compiled for the native engine.

    It owns the memory of its activations: one thread at a time may use it, and other threads may use other networks.
    """

    def __init__(self, module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> None:
        if reason := available():
            raise Unsupported(reason)
        self._plan = plan(module, layout, tuple(shape))
        self._layout = layout
        self._shape = tuple(shape)
        self._library = library.best()
        numbers = torch.tensor([layer.numbers() for layer in self._plan.layers])
        self._engine = self._library.engine_new(numbers.data_ptr(), len(numbers), layout.size)
        if not self._engine:
            raise MemoryError("there is no memory for the network's activations")
        weakref.finalize(self, self._library.engine_free, self._engine)

    @property
    def untrainable(self) -> str | None:
        """None if the engine trains this network, otherwise why it only evaluates it."""
        return self._plan.randomness

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
    ) -> float:
        """One SGD step for each batch of indices, in place: w -= lr * mask * (gradient + pull * (w - anchor)).

        Returns the sum over the steps of the batch's mean loss before the step.
        """
        self._require_trainable()
        self._check_vector(vector)
        if pull and anchor is None:
            raise ValueError("a pull needs an anchor")
        where_to, kept = self._correction("anchor", anchor), self._correction("mask", mask)
        step = library.Step(lr, pull, where_to if pull else None, kept)
        if not batches:
            return 0.0
        indices = checks.batches(batches, len(examples))
        sizes = torch.tensor([len(batch) for batch in batches])
        data = _Data(examples, self._shape, indices, self._plan.classes)
        where = vector.data_ptr(), self._layout.trainable, data.address
        what = indices.data_ptr(), sizes.data_ptr(), len(sizes), ctypes.byref(step)
        return float(self._library.engine_train(self._engine, *where, *what))

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        """The mean loss of one batch, and its gradient."""
        self._require_trainable()
        self._check_vector(vector)
        data = _Data(examples, self._shape, checks.batches([indices], len(examples)), self._plan.classes)
        gradient = torch.empty(self._layout.trainable)
        where = vector.data_ptr(), len(gradient), data.address
        total = self._library.engine_gradient(
            self._engine, *where, indices.data_ptr(), len(indices), gradient.data_ptr()
        )
        return total / len(indices), gradient

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        """The mean loss of one batch."""
        self._require_trainable()
        return self._evaluate(vector, examples, checks.batches([indices], len(examples)))[0] / len(indices)

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses over all examples, and how many are classified correctly."""
        return self._evaluate(vector, examples, None)

    def _evaluate(self, vector: Tensor, examples: Examples, indices: Tensor | None) -> tuple[float, int]:
        self._check_vector(vector)
        data = _Data(examples, self._shape, indices, self._plan.classes)
        count = len(examples) if indices is None else len(indices)
        correct = ctypes.c_int64()
        total = self._library.engine_evaluate(
            self._engine, vector.data_ptr(), data.address, _address(indices), count, ctypes.byref(correct)
        )
        return total, correct.value

    def _require_trainable(self) -> None:
        if self.untrainable:
            raise Unsupported(self.untrainable)

    def _check_vector(self, vector: Tensor) -> None:
        checks.tensor("the vector", vector, (torch.float32,), (self._layout.size,))

    def _correction(self, name: str, value: Tensor | None) -> int | None:
        if value is not None:
            checks.tensor(f"the {name}", value, (torch.float32,), (self._layout.size,), (self._layout.trainable,))
        return _address(value)


class _Data:
    """Checked examples as the engine reads them; lives as long as the engine may."""

    def __init__(self, examples: Examples, shape: tuple[int, ...], indices: Tensor | None, classes: int) -> None:
        scale, shift, targets = checks.examples(examples, shape)
        checks.labels(targets if indices is None else targets[indices], classes)
        self._tensors = examples.inputs, scale, shift, targets
        self._structure = library.Data(
            *(tensor.data_ptr() for tensor in self._tensors), examples.inputs.is_floating_point()
        )
        self.address = ctypes.byref(self._structure)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
