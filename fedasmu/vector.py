"""A model is a vector.

Every trainable parameter of a network lives in one flat float32 tensor; float buffers (BatchNorm statistics) and frozen
parameters follow in its tail. A `Layout` says which name and shape sits at which offset. Mixing two models is then one
`lerp`, an SGD step one `add_`, and a model on the wire has exactly one valid length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

BLOCK = 1 << 17  # numbers: four such blocks and what is made of them fit into the second-level cache


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor of a network sits in its vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def view(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.size].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names and shapes <-> offsets: trainable parameters first, then frozen parameters and float buffers."""

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        trainable = [(name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad]
        frozen = [(name, tensor) for name, tensor in module.named_parameters() if not tensor.requires_grad]
        buffers = [(name, tensor) for name, tensor in module.named_buffers() if tensor.is_floating_point()]
        for name, tensor in (*trainable, *frozen, *buffers):
            if is_lazy(tensor):
                raise ValueError(f"the model's tensor {name!r} has no shape yet: give each layer its number of inputs")
            if tensor.dtype != torch.float32:
                raise ValueError(f"the model's tensor {name!r} is {tensor.dtype}: only float32 models are supported")
        if not trainable:
            raise ValueError("the model has no trainable parameter")
        parameters = tuple(_entries(trainable, 0))
        return cls(parameters, tuple(_entries((*frozen, *buffers), sum(entry.size for entry in parameters))))

    @cached_property
    def trainable(self) -> int:
        """How many of the vector's leading elements are trainable."""
        return sum(entry.size for entry in self.parameters)

    @cached_property
    def size(self) -> int:
        return self.trainable + sum(entry.size for entry in self.buffers)

    @property
    def bytes(self) -> int:
        """What one model weighs on the wire."""
        return 4 * self.size

    def read(self, module: nn.Module) -> Tensor:
        """The module's tensors as one new vector."""
        vector = torch.empty(self.size)
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for entry in (*self.parameters, *self.buffers):
            entry.view(vector).copy_(named[entry.name].detach())
        return vector

    def attach(self, module: nn.Module, vector: Tensor, gradient: Tensor | None = None) -> None:
        """Make the module's tensors views of `vector`, and its gradients views of `gradient`, if one is given.

        From then on, writing the vector loads the model, and a backward pass fills the gradient.
        """
        parameters = dict(module.named_parameters())
        for entry in self.parameters:
            parameters[entry.name].data = entry.view(vector)
            parameters[entry.name].grad = None if gradient is None else entry.view(gradient)
        for entry in self.buffers:
            if entry.name in parameters:
                parameters[entry.name].data = entry.view(vector)
            else:
                owner, _, name = entry.name.rpartition(".")
                module.get_submodule(owner)._buffers[name] = entry.view(vector)

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Copies of the named tensors in `vector`: a state dict without integer buffers."""
        return {entry.name: entry.view(vector).clone() for entry in (*self.parameters, *self.buffers)}


def blocks(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretches of several vectors, as far as the first one goes: each small enough for a core's cache."""
    size = first.numel()
    vectors = (first, *(other if other.numel() == size else other[:size] for other in others))
    if 0 < size <= BLOCK:
        yield vectors
    elif size:
        yield from zip(*(vector.split(BLOCK) for vector in vectors), strict=True)  # type: ignore[no-untyped-call]


def _entries(named: Iterable[tuple[str, Tensor]], offset: int) -> Iterator[Entry]:
    for name, tensor in named:
        yield Entry(name, tuple(tensor.shape), offset)
        offset += tensor.numel()
