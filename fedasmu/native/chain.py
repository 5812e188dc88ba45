"""The layers that the native engine runs, built up one PyTorch module at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from fedasmu.native.text import Text

# A layer of more weights than this leaves the second-level cache, where the engine reads them again for every block of
# samples; PyTorch reads them once a batch. Measured: docs/explanation/engine.md.
MOST_WEIGHTS = 2**20
MOST_ACTIVATIONS = 2**24  # of a sample in one layer: a block of 16 samples holds them twice, in 2 GiB
MOST_STRIDE = 8

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]  # top, left, bottom, right


class Unsupported(Exception):
    """The native engine cannot run this, but PyTorch can. The message says why in one line."""


class Kind(IntEnum):
    CONVOLUTION = 0
    MAXIMUM = 1
    FLATTEN = 2
    LINEAR = 3
    DROPOUT = 4


@dataclass(frozen=True)
class Layer:
    """One layer of the engine. The offsets say where its weight and bias sit in the vector (-1: it has none)."""

    kind: Kind
    inputs: tuple[int, ...]  # channels, height, width; flat features are channels of one pixel
    outputs: tuple[int, ...]
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    weight: int = -1
    bias: int = -1
    relu: bool = False

    def numbers(self) -> list[int]:
        """The layer as engine.cpp reads it."""
        sizes = (*self.inputs, *self.outputs, *self.kernel, *self.stride, *self.padding)
        return [self.kind, *sizes, self.weight, self.bias, self.relu]


class Chain:
    """Layers, each of which reads what the one before it wrote."""

    def __init__(self, shape: tuple[int, ...], offsets: Mapping[int, int]) -> None:
        if len(shape) not in (1, 3) or min(shape) < 1:
            known = "(channels, height, width) and (features,)"
            raise Unsupported(f"inputs have shape {shape}, and the native engine knows {known}")
        self.shape = shape
        self.text: Text | None = None  # what stands before the layers; None: they read the inputs themselves
        self.layers: list[Layer] = []
        self.length = 0  # in modules of the network, some of which share or need no layer
        self.dropouts: list[tuple[int, float]] = []  # how many features, and the share of them that is dropped
        self.randomness: str | None = None  # why the network can be evaluated but not trained
        self._offsets = offsets  # in the vector, by the identity of the parameter
        self._border: Sides = (0, 0, 0, 0)  # zeros that the next convolution finds around its input

    def append(self, module: nn.Module) -> None:
        add = _MODULES.get(type(module))
        if add is None or (any(self._border) and type(module) is not nn.Conv2d):
            raise self.unknown(type(module).__name__)
        self.length += 1
        problem = _too_wide(module) or add(self, module)
        if problem:
            raise Unsupported(f"layer {self.length} ({type(module).__name__}) {problem}")

    def unknown(self, name: str) -> Unsupported:
        return Unsupported(f"layer {self.length + 1} ({name}) is not known to the native engine")

    def _push(self, kind: Kind, shape: tuple[int, ...], **settings: Any) -> None:
        inputs, outputs = ((*sizes, 1, 1)[:3] for sizes in (self.shape, shape))
        top, left, bottom, right = settings.get("padding", (0, 0, 0, 0))
        padded = inputs[0] * (top + inputs[1] + bottom) * (left + inputs[2] + right)
        if max(padded, math.prod(outputs)) > MOST_ACTIVATIONS:
            raise Unsupported(f"layer {self.length} has too many activations: {inputs} to {outputs}")
        self.layers.append(Layer(kind, inputs, outputs, **settings))
        self.shape = shape

    def _slide(self, kernel: Pair, stride: Pair, padding: Sides) -> Pair | None:
        """The height and width of what a window leaves of the input; None if it does not fit in."""
        if len(self.shape) != 3:
            return None
        room = [self.shape[1 + axis] + padding[axis] + padding[axis + 2] - kernel[axis] for axis in (0, 1)]
        return (room[0] // stride[0] + 1, room[1] // stride[1] + 1) if min(room) >= 0 else None

    def _convolution(self, module: nn.Conv2d) -> str | None:
        kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _padding(module)
        if module.groups != 1 or _pair(module.dilation) != (1, 1) or module.padding_mode != "zeros":
            return "has groups, a dilation or a padding mode"
        if max(stride) > MOST_STRIDE:
            return f"has a stride above {MOST_STRIDE}"
        around: Sides = tuple(map(sum, zip(padding, self._border, strict=True)))  # type: ignore[assignment]
        size = self._slide(kernel, stride, around)
        if size is None or self.shape[0] != module.in_channels:
            return f"does not fit its input of shape {self.shape}"
        self._border = (0, 0, 0, 0)
        settings = {"kernel": kernel, "stride": stride, "padding": around}
        self._push(Kind.CONVOLUTION, (module.out_channels, *size), **settings, **self._parameters(module))
        return None

    def _linear(self, module: nn.Linear) -> str | None:
        if self.shape != (module.in_features,):
            return f"does not fit its input of shape {self.shape}"
        self._push(Kind.LINEAR, (module.out_features,), **self._parameters(module))
        return None

    def _parameters(self, module: nn.Conv2d | nn.Linear) -> dict[str, int]:
        bias = -1 if module.bias is None else self._offsets[id(module.bias)]
        return {"weight": self._offsets[id(module.weight)], "bias": bias}

    def _maximum(self, module: nn.MaxPool2d) -> str | None:
        kernel, stride = _pair(module.kernel_size), _pair(module.stride)
        if _pair(module.padding) != (0, 0) or _pair(module.dilation) != (1, 1):
            return "has a padding or a dilation"
        if module.ceil_mode or module.return_indices:
            return "has ceil_mode or return_indices"
        size = self._slide(kernel, stride, (0, 0, 0, 0))
        if size is None:
            return f"does not fit its input of shape {self.shape}"
        # The maximum of ReLUs is the ReLU of the maximum, and that is fewer ReLUs.
        relu = bool(self.layers) and self.layers[-1].kind is Kind.CONVOLUTION and self.layers[-1].relu
        if relu:
            self.layers[-1] = replace(self.layers[-1], relu=False)
        self._push(Kind.MAXIMUM, (self.shape[0], *size), kernel=kernel, stride=stride, relu=relu)
        return None

    def _relu(self, module: nn.ReLU) -> None:
        # What is dropped may as well be dropped after the ReLU: it is the layer before the dropout that has it.
        last = next((at for at, layer in reversed([*enumerate(self.layers)]) if layer.kind is not Kind.DROPOUT), None)
        if last is None or self.layers[last].kind is Kind.FLATTEN:
            self._push(Kind.MAXIMUM, self.shape)  # of one element
            last = -1
        self.layers[last] = replace(self.layers[last], relu=True)

    def _flatten(self, module: nn.Flatten) -> str | None:
        if module.start_dim != 1 or module.end_dim not in (-1, len(self.shape)):
            return "does not flatten each sample to one dimension"
        if len(self.shape) > 1:
            self._push(Kind.FLATTEN, (math.prod(self.shape),))
        return None

    def _zero_pad(self, module: nn.ZeroPad2d) -> str | None:
        left, right, top, bottom = module.padding
        if len(self.shape) != 3 or min(module.padding) < 0:
            return "crops its input, or pads something else than an image"
        self._border = (top, left, bottom, right)
        return None

    def _dropout(self, module: nn.Dropout) -> None:
        if module.p == 0 or not module.training:
            return
        if len(self.shape) > 1:
            self.randomness = f"layer {self.length} (Dropout) drops from images"
        else:
            self._push(Kind.DROPOUT, self.shape)
            self.dropouts.append((self.shape[0], module.p))

    def _identity(self, module: nn.Identity) -> None:
        pass


_MODULES: dict[type[nn.Module], Callable[[Chain, Any], str | None]] = {
    nn.Conv2d: Chain._convolution,
    nn.Linear: Chain._linear,
    nn.MaxPool2d: Chain._maximum,
    nn.ReLU: Chain._relu,
    nn.Flatten: Chain._flatten,
    nn.ZeroPad2d: Chain._zero_pad,
    nn.Dropout: Chain._dropout,
    nn.Identity: Chain._identity,
}


def _too_wide(module: nn.Module) -> str | None:
    weights = module.weight.numel() if isinstance(module, nn.Conv2d | nn.Linear) else 0
    return f"has {weights:,} weights: PyTorch is faster for layers this wide" if weights > MOST_WEIGHTS else None


def _pair(size: Any) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _padding(module: nn.Conv2d) -> Sides:
    """PyTorch also takes the words "valid" and "same"; "same" pads an even kernel by one more at the end."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    y, x = _pair([size - 1 for size in module.kernel_size] if module.padding == "same" else module.padding)
    return (y // 2, x // 2, y - y // 2, x - x // 2) if module.padding == "same" else (y, x, y, x)
