"""Training small networks several times faster than PyTorch does on one processor core.

`NativeEngine` compiles a module's layers for a C++ engine that keeps the batch as the innermost dimension: see
docs/explanation/engine.md. What the engine does not know raises `Unsupported`, and PyTorch runs instead.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from fedasmu.data.examples import Examples
from fedasmu.engines.native import checks, library
from fedasmu.engines.native.graph import Kind, Unsupported
from fedasmu.engines.native.plan import Plan, plan
from fedasmu.engines.native.text import Text
from fedasmu.engines.rule import SGD, Rule
from fedasmu.models.contrast import Contrast
from fedasmu.protocol import Objective
from fedasmu.vector import Layout

__all__ = ["NativeEngine", "Unsupported", "available"]


def available() -> str | None:
    """None if the engine can be used here, otherwise why not."""
    try:
        library.variant()
    except OSError as error:
        return str(error)
    return None


class NativeEngine:
    """A module's layers compiled for the native engine.

    It owns the memory of its activations: one thread at a time may use it, and other threads may use other networks.
    """

    def __init__(self, module: nn.Module, layout: Layout, shape: tuple[int, ...], instructions: str = "auto") -> None:
        try:
            self.instructions = library.variant(instructions)
        except OSError as error:
            raise Unsupported(str(error)) from None
        self._plan = plan(module, layout, tuple(shape))
        self._module, self._layout, self._shape = module, layout, tuple(shape)
        self._library = library.load(self.instructions)
        layers = library.array(library.Layer, self._plan.layers)
        text = None if self._plan.text is None else ctypes.byref(_described(self._plan.text))
        self._engine = self._library.engine_new(layers, len(layers), text, layout.size)
        if not self._engine:
            raise MemoryError("there is no memory for the network's activations")
        weakref.finalize(self, self._library.engine_free, self._engine)

    def __reduce__(self) -> tuple[Any, ...]:
        """Compiled anew where it is unpickled, for the same instructions: its memory does not travel."""
        return NativeEngine, (self._module, self._layout, self._shape, self.instructions)

    @property
    def untrainable(self) -> str | None:
        """None if the engine trains this network, otherwise why it only evaluates it."""
        return self._plan.randomness

    @property
    def contrasts(self) -> bool:
        """Whether the network learns features and ends in a linear layer over them: what MOON compares."""
        *before, last = self._plan.layers
        learned = self._plan.text is not None or any(layer.weight >= 0 for layer in before)
        return learned and last.kind is Kind.LINEAR and not last.relu

    def supports(self, objective: Objective | None) -> bool:
        return objective is None or (isinstance(objective, Contrast) and self.contrasts)

    def slow(self, batch: int) -> str | None:
        """Why PyTorch trains this network faster on batches of this size, None if it does not."""
        return self._plan.slow(batch)

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
        """One step for each batch of indices, in place: w -= lr * mask * (gradient + pull * (w - anchor)), by SGD.

        The gradient is that of the cross-entropy, the outputs raised by `shift`, and of a `Contrast`'s term if that is
        the objective.

        Returns the sum over the steps of the batch's mean loss before the step.
        """
        self._require_trainable()
        self._check_vector(vector)
        if pull and anchor is None:
            raise ValueError("a pull needs an anchor")
        if shift is not None:
            shift = pad(shift, (0, max(0, self._plan.classes - len(shift))))
            checks.tensor("the shift", shift, (torch.float32,), (self._plan.classes,))
        where_to, kept = self._correction("anchor", anchor), self._correction("mask", mask)
        step = self._step(lr, pull, where_to if pull else None, kept, rule)
        if not batches:
            return 0.0
        indices = checks.batches(batches, len(examples))
        sizes = torch.tensor([len(batch) for batch in batches])
        self._reserve(sizes)
        data, noise = _Data(examples, self._shape, indices, self._plan), self._noise(batches)
        compared = None
        if objective is not None:
            contrast = self._contrast(objective)
            each, places = torch.unique(indices, return_inverse=True)  # every epoch has the same examples
            others = contrast.received, contrast.previous
            near, far = (self.features(other, examples, each)[places] for other in others)
            compared = library.Contrast(near.data_ptr(), far.data_ptr(), contrast.mu, contrast.temperature)
        where = vector.data_ptr(), self._layout.trainable, data.address
        what = indices.data_ptr(), sizes.data_ptr(), len(sizes), _address(noise)
        terms = compared and ctypes.byref(compared), _address(shift), ctypes.byref(step)
        return float(self._library.engine_train(self._engine, *where, *what, *terms))

    def _step(self, lr: float, pull: float, anchor: int | None, mask: int | None, rule: Rule) -> library.Step:
        optimiser = rule.optimiser
        if optimiser.memories:
            size = optimiser.memories * self._layout.trainable
            state = torch.empty(0) if rule.state is None else rule.state
            checks.tensor("the optimiser's state", state, (torch.float32,), (size,))
        numbers = optimiser.weight_decay, optimiser.momentum, *optimiser.betas, optimiser.eps
        kind = optimiser.optimiser == "adam"
        return library.Step(lr, pull, anchor, mask, _address(rule.state), *numbers, kind, rule.done)

    def _contrast(self, objective: Objective) -> Contrast:
        if not isinstance(objective, Contrast):
            raise Unsupported(f"the native engine does not know the objective {type(objective).__name__}")
        return objective

    def features(self, vector: Tensor, examples: Examples, indices: Tensor) -> Tensor:
        """What the last layer reads of each of these examples, in evaluation."""
        if not self.contrasts:
            raise Unsupported("the network does not end in a linear layer over features that it learns")
        self._check_vector(vector)
        data = _Data(examples, self._shape, checks.batches([indices], len(examples)), self._plan)
        features = torch.empty(len(indices), self._plan.layers[-1].inputs[0])
        what = indices.data_ptr(), len(indices), features.data_ptr()
        self._library.engine_features(self._engine, vector.data_ptr(), data.address, *what)
        return features

    def gradient(self, vector: Tensor, examples: Examples, indices: Tensor) -> tuple[float, Tensor]:
        """The mean loss of one batch, and its gradient."""
        self._require_trainable()
        self._check_vector(vector)
        data = _Data(examples, self._shape, checks.batches([indices], len(examples)), self._plan)
        self._reserve(torch.tensor([len(indices)]))
        gradient, noise = torch.empty(self._layout.trainable), self._noise([indices])
        where = vector.data_ptr(), len(gradient), data.address
        what = indices.data_ptr(), len(indices), _address(noise), gradient.data_ptr()
        total = self._library.engine_gradient(self._engine, *where, *what)
        return total / len(indices), gradient

    def loss(self, vector: Tensor, examples: Examples, indices: Tensor) -> float:
        """The mean loss of one batch."""
        self._require_trainable()
        checked = checks.batches([indices], len(examples))
        self._reserve(torch.tensor([len(indices)]))
        return self._evaluate(vector, examples, checked, self._noise([indices]))[0] / len(indices)

    def evaluate(self, vector: Tensor, examples: Examples) -> tuple[float, int]:
        """The sum of the losses over all examples, and how many are classified correctly."""
        return self._evaluate(vector, examples, None, None)

    def _evaluate(
        self, vector: Tensor, examples: Examples, indices: Tensor | None, noise: Tensor | None
    ) -> tuple[float, int]:
        self._check_vector(vector)
        data = _Data(examples, self._shape, indices, self._plan)
        count = len(examples) if indices is None else len(indices)
        correct = ctypes.c_int64()
        training = indices is not None
        what = _address(indices), count, _address(noise), training, ctypes.byref(correct)
        total = self._library.engine_evaluate(self._engine, vector.data_ptr(), data.address, *what)
        return total, correct.value

    def _noise(self, batches: Sequence[Tensor]) -> Tensor | None:
        """What the dropouts multiply by: the numbers that PyTorch's own would draw, from the same generator."""
        drawn = [
            dropout(torch.ones(len(batch), features), share).flatten()
            for batch in batches
            for features, share in self._plan.dropouts
        ]
        return torch.cat(drawn) if drawn else None

    def _reserve(self, sizes: Tensor) -> None:
        """Memory to train on batches of these sizes."""
        if int(sizes.min()) < self._plan.fewest:
            raise ValueError("a batch of one example is too small for the network's batch normalisation of features")
        if not self._library.engine_reserve(self._engine, int(sizes.max())):
            raise MemoryError("there is no memory for the activations of a batch")

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

    def __init__(self, examples: Examples, shape: tuple[int, ...], indices: Tensor | None, plan: Plan) -> None:
        inputs, targets = examples.inputs, examples.targets
        scale = shift = None
        if plan.text:
            checks.texts(examples, plan.text.length, indices, plan.text.vocabulary)
        else:
            scale, shift = checks.examples(examples, shape)
        checks.labels(targets if indices is None else targets[indices], plan.classes)
        self._tensors = inputs, scale, shift, targets
        self._structure = library.Data(*map(_address, self._tensors), inputs.dtype in (torch.float32, torch.int64))
        self.address = ctypes.byref(self._structure)


def _described(text: Text) -> library.Text:
    windows = library.array(library.Window, text.windows)
    head = text.length, text.vocabulary, text.depth, text.vectors, text.padding
    return library.Text(*head, len(windows), windows)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
