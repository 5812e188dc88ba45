"""From a PyTorch module to the layers that the native engine runs.

The module is traced (torch.fx), so it is recognised by what it computes, never by its name: a chain of known layers, each
of which reads what the one before it wrote.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedasmu.vector import Entry, Layout

Pair = tuple[int, int]


class Unsupported(Exception):
    """The native engine cannot run this, but PyTorch can. The message says why in one line."""


class Kind(IntEnum):
    CONVOLUTION = 0
    MAXIMUM = 1
    FLATTEN = 2
    LINEAR = 3


@dataclass(frozen=True)
class Layer:
    """One layer of the engine. The offsets say where its weight and bias sit in the vector (-1: it has none)."""

    kind: Kind
    inputs: tuple[int, ...]  # channels, height, width; flat features are channels of one pixel
    outputs: tuple[int, ...]
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    weight: int = -1
    bias: int = -1
    relu: bool = False

    def numbers(self) -> list[int]:
        """The layer as engine.cpp reads it."""
        sizes = (*self.inputs, *self.outputs, *self.kernel, *self.stride, *self.padding)
        return [self.kind, *sizes, self.weight, self.bias, self.relu]


@dataclass(frozen=True)
class Plan:
    layers: tuple[Layer, ...]
    classes: int
    randomness: str | None  # why the network can be evaluated but not trained; None: it can


def plan(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Plan:
    """The layers of a module for inputs of `shape`, or `Unsupported`."""
    training, evaluation = (_trace(module, layout, shape, mode) for mode in (True, False))
    if training.layers != evaluation.layers:
        raise Unsupported("the network has other layers in training than in evaluation")
    if not any(layer.weight >= 0 for layer in training.layers):
        raise Unsupported("the network has neither a convolution nor a linear layer")
    if len(training.shape) != 1:
        raise Unsupported(f"the network ends in images of shape {training.shape}, not in one number a class")
    return Plan(tuple(training.layers), training.shape[0], training.randomness)


def _trace(module: nn.Module, layout: Layout, shape: tuple[int, ...], mode: bool) -> _Chain:
    root = nn.Sequential(copy.deepcopy(module)).train(mode)
    if any(part._forward_hooks or part._forward_pre_hooks for part in root.modules()):
        raise Unsupported("the network has forward hooks")
    try:
        graph = fx.Tracer().trace(root)
    except Exception as error:  # whatever the user's forward raises when it meets a symbolic input
        raise Unsupported(f"the network's forward cannot be traced: {str(error).partition(chr(10))[0]}") from error
    chain = _Chain(shape, _offsets(root, layout))
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        values[node] = chain.visit(
            root, node, fx.node.map_arg(node.args, values.get), fx.node.map_arg(node.kwargs, values.get)
        )
    return chain


def _offsets(root: nn.Sequential, layout: Layout) -> dict[int, int]:
    """Where each parameter sits in the vector, by its identity: a shared one has one place."""
    entries: dict[str, Entry] = {entry.name: entry for entry in (*layout.parameters, *layout.buffers)}
    offsets = {}
    for name, tensor in root[0].named_parameters():
        if name not in entries or entries[name].shape != tuple(tensor.shape):
            raise ValueError(f"the layout has no tensor {name!r} of shape {tuple(tensor.shape)}: it is another model's")
        offsets[id(tensor)] = entries[name].offset
    return offsets


class _Chain:
    """Collects the layers while the nodes of a graph go by."""

    def __init__(self, shape: tuple[int, ...], offsets: dict[int, int]) -> None:
        if len(shape) not in (1, 3) or min(shape) < 1:
            raise Unsupported(
                f"inputs of shape {shape}: the native engine knows (channels, height, width) and (features,)"
            )
        self.shape = shape
        self.offsets = offsets
        self.layers: list[Layer] = []
        self.randomness: str | None = None
        self.position = 0
        self.head = object()  # stands for the newest activations

    def visit(self, root: nn.Module, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the node computes: `head`, or a plain value such as a size."""
        if node.op == "placeholder":
            return self.head if node is next(iter(node.graph.nodes)) else None
        if node.op == "output":
            return self._check_head(args)
        if node.op == "call_module":
            self._check_head(args)
            return self._append(root.get_submodule(str(node.target)))
        if node.op in ("call_function", "call_method"):
            if node.target in (operator.getitem, getattr):
                return self._attribute(*args)
            if node.target == "size":
                return self._attribute(self._attribute(args[0], "shape"), *args[1:])
            self._check_head(args)
            return self._append(self._as_module(node.target, args[1:], kwargs))
        raise self._unknown(str(node.target))

    def _attribute(self, value: Any, key: Any = slice(None)) -> Any:
        """Of all that a forward can do with sizes, only `x.size(0)`, `x.shape[0]` and their like are known."""
        if value is self.head and key == "shape":
            return (_BATCH, *self.shape)
        if isinstance(value, tuple) and isinstance(key, int | slice):
            return value[key]
        raise self._unknown(f"{key!r}")

    def _check_head(self, args: Sequence[Any]) -> None:
        if not args or args[0] is not self.head:
            raise Unsupported(
                f"the network is not a chain: layer {self.position + 1} reads something else than the last layer"
            )

    def _unknown(self, name: str) -> Unsupported:
        return Unsupported(f"layer {self.position + 1} ({name}) is not known to the native engine")

    def _as_module(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module:
        if target in ("view", "reshape", torch.reshape):
            return self._reshape(args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args)
        if target not in _FUNCTIONS:
            raise self._unknown(getattr(target, "__name__", str(target)))
        return _FUNCTIONS[target](*args, **kwargs)

    def _reshape(self, sizes: Sequence[Any]) -> nn.Module:
        features = math.prod(self.shape)
        if tuple(sizes) in ((_BATCH, -1), (_BATCH, features), (-1, features)):
            return nn.Flatten()
        raise self._unknown("reshape")

    def _append(self, module: nn.Module) -> object:
        self.position += 1
        add = _MODULES.get(type(module))
        if add is None:
            self.position -= 1
            raise self._unknown(type(module).__name__)
        problem = add(self, module)
        if problem:
            raise Unsupported(f"layer {self.position} ({type(module).__name__}) {problem}")
        self.head = object()
        return self.head

    def _push(self, kind: Kind, shape: tuple[int, ...], **settings: Any) -> None:
        inputs, outputs = ((*sizes, 1, 1)[:3] for sizes in (self.shape, shape))
        self.layers.append(Layer(kind, inputs, outputs, **settings))
        self.shape = shape

    def _window(self, kernel: Pair, stride: Pair, padding: Pair) -> tuple[int, ...]:
        sizes = zip(self.shape[1:], kernel, stride, padding, strict=True)
        return tuple((size + 2 * ring - window) // step + 1 for size, window, step, ring in sizes)

    def _convolution(self, module: nn.Conv2d) -> str | None:
        kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _padding(module)
        if padding is None or module.groups != 1 or _pair(module.dilation) != (1, 1) or module.padding_mode != "zeros":
            return "has groups, a dilation or a padding that the native engine does not know"
        if (
            len(self.shape) != 3
            or self.shape[0] != module.in_channels
            or min(self._window(kernel, stride, padding)) < 1
        ):
            return f"does not fit its input of shape {self.shape}"
        outputs = (module.out_channels, *self._window(kernel, stride, padding))
        self._push(Kind.CONVOLUTION, outputs, kernel=kernel, stride=stride, padding=padding, **self._parameters(module))
        return None

    def _linear(self, module: nn.Linear) -> str | None:
        if self.shape != (module.in_features,):
            return f"does not fit its input of shape {self.shape}"
        self._push(Kind.LINEAR, (module.out_features,), **self._parameters(module))
        return None

    def _parameters(self, module: nn.Conv2d | nn.Linear) -> dict[str, int]:
        bias = -1 if module.bias is None else self.offsets[id(module.bias)]
        return {"weight": self.offsets[id(module.weight)], "bias": bias}

    def _maximum(self, module: nn.MaxPool2d) -> str | None:
        kernel, stride = _pair(module.kernel_size), _pair(module.stride)
        if (
            _pair(module.padding) != (0, 0)
            or _pair(module.dilation) != (1, 1)
            or module.ceil_mode
            or module.return_indices
        ):
            return "has a padding, a dilation or a mode that the native engine does not know"
        if len(self.shape) != 3 or min(self._window(kernel, stride, (0, 0))) < 1:
            return f"does not fit its input of shape {self.shape}"
        # The maximum of ReLUs is the ReLU of the maximum, and that is fewer ReLUs.
        relu = bool(self.layers) and self.layers[-1].kind is Kind.CONVOLUTION and self.layers[-1].relu
        if relu:
            self.layers[-1] = replace(self.layers[-1], relu=False)
        outputs = (self.shape[0], *self._window(kernel, stride, (0, 0)))
        self._push(Kind.MAXIMUM, outputs, kernel=kernel, stride=stride, relu=relu)
        return None

    def _relu(self, module: nn.ReLU) -> None:
        if not self.layers or self.layers[-1].kind is Kind.FLATTEN:
            self._push(Kind.MAXIMUM, self.shape)
        self.layers[-1] = replace(self.layers[-1], relu=True)

    def _flatten(self, module: nn.Flatten) -> str | None:
        if module.start_dim != 1 or module.end_dim not in (-1, len(self.shape)):
            return "does not flatten each sample to one dimension"
        if len(self.shape) > 1:
            self._push(Kind.FLATTEN, (math.prod(self.shape),))
        return None

    def _dropout(self, module: nn.Dropout) -> None:
        if module.p > 0 and module.training:
            self.randomness = f"layer {self.position} (Dropout) is random: only PyTorch trains with it"

    def _identity(self, module: nn.Identity) -> None:
        pass


_BATCH = object()  # the first dimension of every activation

_MODULES: dict[type[nn.Module], Callable[[_Chain, Any], str | None]] = {
    nn.Conv2d: _Chain._convolution,
    nn.Linear: _Chain._linear,
    nn.MaxPool2d: _Chain._maximum,
    nn.ReLU: _Chain._relu,
    nn.Flatten: _Chain._flatten,
    nn.Dropout: _Chain._dropout,
    nn.Identity: _Chain._identity,
}


def _max_pool2d(
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    return nn.MaxPool2d(size, stride, padding, dilation, return_indices, ceil_mode)


def _as_relu(inplace: bool = False) -> nn.Module:
    return nn.ReLU()


def _as_flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _as_dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p) if training else nn.Identity()


# Functions and methods, as the modules that do the same.
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    functional.relu: _as_relu,
    torch.relu: _as_relu,
    "relu": _as_relu,
    "relu_": _as_relu,
    functional.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
    torch.flatten: _as_flatten,
    "flatten": _as_flatten,
    functional.dropout: _as_dropout,
    "contiguous": nn.Identity,
}


def _pair(size: Any) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _padding(module: nn.Conv2d) -> Pair | None:
    """PyTorch also takes the words "valid" and "same"; an even kernel of the same size pads one side more."""
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        y, x = _pair(module.kernel_size)
        return ((y - 1) // 2, (x - 1) // 2) if y % 2 and x % 2 else None
    return _pair(module.padding)
