"""From a PyTorch module to the layers that the native engine runs.

The module is traced (torch.fx), so it is recognised by what it computes, never by its name.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedasmu.native import text
from fedasmu.native.chain import Chain, Kind, Layer, Unsupported
from fedasmu.vector import Layout


@dataclass(frozen=True)
class Plan:
    layers: tuple[Layer, ...]
    classes: int
    text: text.Text | None  # what stands before the layers; None: they read the inputs themselves
    dropouts: tuple[tuple[int, float], ...]  # how many features, and the share of them that is dropped
    randomness: str | None  # why the network can be evaluated but not trained; None: it can


def plan(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Plan:
    """The layers of a module for inputs of `shape`, or `Unsupported`."""
    training, evaluation = (_trace(module, layout, shape, mode) for mode in (True, False))
    if evaluation.randomness or evaluation.dropouts:
        raise Unsupported("the network is random also when it is evaluated")
    lasting = [layer for layer in training.layers if layer.kind is not Kind.DROPOUT]
    if (training.text, lasting) != (evaluation.text, evaluation.layers):
        raise Unsupported("the network has other layers in training than in evaluation")
    if not any(layer.weight >= 0 for layer in training.layers):
        raise Unsupported("the network has neither a convolution nor a linear layer")
    if len(training.shape) != 1:
        raise Unsupported(f"the network ends in images of shape {training.shape}, not in one number a class")
    dropouts = tuple(training.dropouts)
    return Plan(tuple(training.layers), training.shape[0], training.text, dropouts, training.randomness)


def _trace(module: nn.Module, layout: Layout, shape: tuple[int, ...], training: bool) -> Chain:
    root = nn.Sequential(copy.deepcopy(module)).train(training)  # tracing looks inside a Sequential, whatever is in it
    if any(part._forward_hooks or part._forward_pre_hooks for part in root.modules()):
        raise Unsupported("the network has forward hooks")
    try:
        graph = fx.Tracer().trace(root)
    except Exception as error:  # whatever the user's forward raises when it meets a symbolic input
        raise Unsupported(f"the network's forward cannot be traced: {str(error).partition(chr(10))[0]}") from error
    reader = _Reader(root, shape, _offsets(root[0], layout))
    for node in graph.nodes:
        reader.read(node)
    return reader.chain


def _offsets(module: nn.Module, layout: Layout) -> dict[int, int]:
    """Where each parameter sits in the vector, by its identity: a shared one has one place."""
    entries = {entry.name: entry for entry in (*layout.parameters, *layout.buffers)}
    offsets = {}
    for name, tensor in module.named_parameters():
        if name not in entries or entries[name].shape != tuple(tensor.shape):
            raise ValueError(f"the layout is another model's: it has no {name!r} of shape {tuple(tensor.shape)}")
        offsets[id(tensor)] = entries[name].offset
    return offsets


@dataclass(frozen=True, eq=False)
class _Activations:
    """What one node of the graph computes for a sample."""

    shape: tuple[int, ...]


class _Reader:
    """Reads a graph node by node, as modules of a chain. All else that is understood is asking for the batch size."""

    def __init__(self, root: nn.Module, shape: tuple[int, ...], offsets: Mapping[int, int]) -> None:
        self.root, self.offsets = root, offsets
        self.chain = Chain(shape, offsets)
        self.newest = _Activations(shape)
        self.values: dict[fx.Node, Any] = {}

    def read(self, node: fx.Node) -> None:
        known = self.values.__getitem__
        self.values[node] = self._value(node, fx.node.map_arg(node.args, known), fx.node.map_arg(node.kwargs, known))

    def _value(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "placeholder":
            return self.newest
        if node.target in (operator.getitem, getattr):
            return self._part(*args)
        if node.target == "size":
            return self._part(self._part(args[0], "shape"), *args[1:])
        if node.target is torch.cat and args and set(kwargs) <= {"dim"}:
            return text.joined(*args, **kwargs)
        operation = self.root.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        value = args[0] if args else None
        if type(operation) is nn.Embedding and value is self.newest and not self.chain.length:
            return text.embedded(operation, self.chain.shape, self.offsets)
        if isinstance(value, text.Text):
            if value.features is None:
                return text.after(value, operation, (*args[1:], *kwargs.values()), self.offsets)
            value = self._begin(value, value.features)
        if value is not self.newest:
            raise Unsupported(
                f"the network is not a chain: layer {self.chain.length + 1} reads not the layer before it"
            )
        if node.op != "output":
            self.chain.append(self._module(operation, node.name, args[1:], kwargs))
            self.newest = _Activations(self.chain.shape)
        return self.newest

    def _begin(self, words: text.Text, features: int) -> _Activations | None:
        """A text's features are what the chain begins with: once."""
        if self.chain.length or self.chain.text:
            return None
        self.chain.text, self.chain.shape = words, (features,)
        self.newest = _Activations(self.chain.shape)
        return self.newest

    def _part(self, value: Any, key: Any = slice(None)) -> Any:
        if isinstance(value, _Activations) and key == "shape":
            return (_BATCH, *value.shape)
        if isinstance(value, tuple) and isinstance(key, int | slice):
            return value[key]
        raise self.chain.unknown(str(key))

    def _module(self, operation: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module:
        if isinstance(operation, nn.Module):
            return operation
        if operation in ("view", "reshape", torch.reshape):
            return self._flatten(args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args)
        if operation not in _FUNCTIONS:
            raise self.chain.unknown(name)
        return _FUNCTIONS[operation](*args, **kwargs)

    def _flatten(self, sizes: Sequence[Any]) -> nn.Module:
        features = math.prod(self.chain.shape)
        if tuple(sizes) in ((_BATCH, -1), (_BATCH, features), (-1, features)):
            return nn.Flatten()
        raise self.chain.unknown("reshape")


_BATCH = object()  # the first dimension of every activation


def _relu(inplace: bool = False) -> nn.Module:
    return nn.ReLU()


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p) if training else nn.Identity()


# Functions and methods, as the modules that do the same.
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    functional.relu: _relu,
    torch.relu: _relu,
    "relu": _relu,
    "relu_": _relu,
    functional.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    torch.flatten: _flatten,
    "flatten": _flatten,
    functional.dropout: _dropout,
    "contiguous": nn.Identity,
}
