"""The layers that the native engine runs, and the tensors between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fedasmu.engines.native.text import Text

MOST_ACTIVATIONS = 2**24  # of a sample in one layer: a block of 16 samples holds them twice, in 2 GiB

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]  # top, left, bottom, right


class Unsupported(Exception):
    """The native engine cannot run this, but PyTorch can. The message says why in one line."""


class Kind(IntEnum):
    """In the order of layer.h."""

    CONVOLUTION = 0
    MAXIMUM = 1  # of one element it is a ReLU, or nothing
    FLATTEN = 2
    LINEAR = 3
    DROPOUT = 4
    AVERAGE = 5
    SHORTCUT = 6  # every stride-th pixel, between channels of zeros
    SUM = 7
    BATCH_NORM = 8
    GROUP_NORM = 9


@dataclass(frozen=True)
class Layer:
    """One layer of the engine. The offsets say where its tensors sit in the vector (-1: it has none)."""

    kind: Kind
    inputs: tuple[int, ...]  # channels, height, width; flat features are channels of one pixel
    outputs: tuple[int, ...]
    reads: int  # which tensor: 0 is the input, i + 1 what layer i writes
    other: int = -1  # a sum reads two
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    weight: int = -1
    bias: int = -1
    mean: int = -1
    variance: int = -1
    groups: int = 1
    front: int = 0  # channels of zeros before those of a shortcut
    relu: bool = False
    eps: float = 0.0
    momentum: float = 0.0

    @property
    def weights(self) -> int:
        """How many it multiplies with."""
        area = math.prod(self.kernel) if self.kind is Kind.CONVOLUTION else 1
        return area * self.inputs[0] * self.outputs[0] if self.kind in (Kind.CONVOLUTION, Kind.LINEAR) else 0

    @property
    def products(self) -> int:
        """How many it computes for a sample."""
        return self.weights * math.prod(self.outputs[1:])

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.reads,) if self.other < 0 else (self.reads, self.other)


@dataclass(frozen=True, eq=False)
class Values:
    """What the network computes for a sample at one place: a tensor of the engine, or what PyTorch sees of it."""

    tensor: int
    shape: tuple[int, ...]
    border: Sides = (0, 0, 0, 0)  # zeros that a convolution finds around it
    memory: object = field(default_factory=object)  # PyTorch's: what is a view of it has the same


class Graph:
    """Layers, each of which reads what earlier ones wrote."""

    def __init__(self, shape: tuple[int, ...], offsets: Mapping[int, int]) -> None:
        if len(shape) not in (1, 3) or min(shape) < 1:
            known = "(channels, height, width) and (features,)"
            raise Unsupported(f"inputs have shape {shape}, and the native engine knows {known}")
        self.input = Values(0, shape)
        self.text: Text | None = None  # what stands before the layers; None: they read the inputs themselves
        self.layers: list[Layer] = []
        self.length = 0  # in modules of the network, some of which share or need no layer
        self.dropouts: list[tuple[int, float]] = []  # how many features, and the share of them that is dropped
        self.randomness: str | None = None  # why the network can be evaluated but not trained
        self._offsets = offsets  # in the vector, by the identity of the parameter
        self._stale: set[int] = set()  # memories that were written to

    def begin(self, text: Text, features: int) -> Values:
        """The features of a text are what the layers begin with: once."""
        if self.text or self.layers:
            raise Unsupported("the network reads its text twice")
        self.text, self.input = text, Values(0, (features,))
        return self.input

    def read(self, x: Any) -> Values:
        """x itself, if it still has the values that it was given."""
        if not isinstance(x, Values):
            raise Unsupported(f"layer {self.length + 1} reads something else than the output of another")
        if id(x.memory) in self._stale:
            raise Unsupported(f"layer {self.length + 1} reads what another has overwritten in place")
        return x

    def overwrite(self, x: Values) -> None:
        self._stale.add(id(x.memory))

    def push(self, kind: Kind, x: Values, shape: tuple[int, ...], **settings: Any) -> Values:
        """A new layer that makes `shape` of x."""
        inputs, outputs = ((*sizes, 1, 1)[:3] for sizes in (x.shape, shape))
        top, left, bottom, right = settings.get("padding", (0, 0, 0, 0))
        padded = inputs[0] * (top + inputs[1] + bottom) * (left + inputs[2] + right)
        if max(padded, math.prod(outputs)) > MOST_ACTIVATIONS:
            raise Unsupported(f"layer {self.length} has too many activations: {inputs} to {outputs}")
        self.layers.append(Layer(kind, inputs, outputs, x.tensor, **settings))
        return Values(len(self.layers), shape)

    def view(self, kind: Kind, x: Values, shape: tuple[int, ...], **settings: Any) -> Values:
        """A new layer that copies where PyTorch only looks at x in another way."""
        return replace(self.push(kind, x, shape, **settings), memory=x.memory)

    def offset(self, tensor: torch.Tensor | None) -> int:
        return -1 if tensor is None else self._offsets[id(tensor)]

    def unknown(self, name: str) -> Unsupported:
        return Unsupported(f"layer {self.length + 1} ({name}) is not known to the native engine")
