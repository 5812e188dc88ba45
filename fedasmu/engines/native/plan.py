"""From a PyTorch module to the layers that the native engine runs.

The module is traced (torch.fx), so it is recognised by what it computes, never by its name.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedasmu.engines.native import functions, text
from fedasmu.engines.native.fuse import fused
from fedasmu.engines.native.graph import Graph, Kind, Layer, Unsupported, Values
from fedasmu.engines.native.modules import append, shortcut, sum_of
from fedasmu.vector import Layout

CACHED_WEIGHTS = 2**20  # of a layer
FEWEST_USES, FEWEST_SAMPLES = 2, 4  # of a weight by a sample, of a batch: measured, see docs/explanation/engine.md


@dataclass(frozen=True)
class Plan:
    layers: tuple[Layer, ...]
    classes: int
    text: text.Text | None  # what stands before the layers; None: they read the inputs themselves
    dropouts: tuple[tuple[int, float], ...]  # how many features, and the share of them that is dropped
    randomness: str | None  # why the network can be evaluated but not trained; None: it can

    def slow(self, batch: int) -> str | None:
        """Why PyTorch trains this faster on batches of this size, None if it does not.

        Weights that leave the second-level cache are fetched again for every 16 samples, which pays only where each of
        them is then used often enough.
        """
        weights = [layer.weights for layer in self.layers]
        uses = sum(layer.products for layer in self.layers) / max(sum(weights), 1)
        if max(weights) <= CACHED_WEIGHTS or (uses >= FEWEST_USES and batch >= FEWEST_SAMPLES):
            return None
        return f"its {sum(weights):,} weights are used {uses:.1f} times each by a sample, in batches of {batch}"

    @property
    def fewest(self) -> int:
        """Samples of a batch that can be trained on: a batch normalisation needs two numbers of each channel."""
        norms = [layer for layer in self.layers if layer.kind is Kind.BATCH_NORM]
        return 2 if any(layer.inputs[1:] == (1, 1) for layer in norms) else 1


def plan(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Plan:
    """The layers of a module for inputs of `shape`, or `Unsupported`."""
    (graph, end), (evaluation, _) = (_trace(module, layout, shape, mode) for mode in (True, False))
    if evaluation.randomness or evaluation.dropouts:
        raise Unsupported("the network is random also when it is evaluated")
    if graph.text != evaluation.text or _lasting(graph) != _lasting(evaluation):
        raise Unsupported("the network has other layers in training than in evaluation")
    if not any(layer.kind in (Kind.CONVOLUTION, Kind.LINEAR) for layer in graph.layers):
        raise Unsupported("the network has neither a convolution nor a linear layer")
    if len(end.shape) != 1:
        raise Unsupported(f"the network ends in images of shape {end.shape}, not in one number a class")
    if end.tensor != len(graph.layers):
        raise Unsupported("the output of the network's last layer is not used")
    layers = tuple(fused(graph.layers))
    return Plan(layers, end.shape[0], graph.text, tuple(graph.dropouts), graph.randomness)


def _lasting(graph: Graph) -> list[Layer]:
    """The layers without their dropouts, and so without the numbers of the tensors that they read."""
    return [replace(layer, reads=0, other=0) for layer in graph.layers if layer.kind is not Kind.DROPOUT]


def _trace(module: nn.Module, layout: Layout, shape: tuple[int, ...], training: bool) -> tuple[Graph, Values]:
    """The layers of the module, and what the last of them computes."""
    root = nn.Sequential(copy.deepcopy(module)).train(training)  # tracing looks inside a Sequential, whatever is in it
    if any(part._forward_hooks or part._forward_pre_hooks for part in root.modules()):
        raise Unsupported("the network has forward hooks")
    try:
        traced = _Tracer().trace(root)
    except Exception as error:  # whatever the user's forward raises when it meets a symbolic input
        raise Unsupported(f"the network's forward cannot be traced: {str(error).partition(chr(10))[0]}") from error
    reader = _Reader(root, shape, _offsets(root[0], layout))
    for node in traced.nodes:
        reader.read(node)
    return reader.graph, reader.values[node]


class _Proxy(fx.Proxy):
    """torch.fx takes `x += y` for `x = x + y`, which is not the same where something else is a view of x."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _offsets(module: nn.Module, layout: Layout) -> dict[int, int]:
    """Where each parameter sits in the vector, by its identity: a shared one has one place."""
    entries = {entry.name: entry for entry in (*layout.parameters, *layout.buffers)}
    offsets = {}
    for name, tensor in (*module.named_parameters(), *_statistics(module)):
        if name not in entries or entries[name].shape != tuple(tensor.shape):
            raise ValueError(f"the layout is another model's: it has no {name!r} of shape {tuple(tensor.shape)}")
        offsets[id(tensor)] = entries[name].offset
    return offsets


def _statistics(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]


class _Reader:
    """Reads a traced graph node by node, as layers. All else that is understood is asking for the batch size."""

    def __init__(self, root: nn.Module, shape: tuple[int, ...], offsets: Mapping[int, int]) -> None:
        self.root, self.offsets = root, offsets
        self.graph = Graph(shape, offsets)
        self.values: dict[fx.Node, Any] = {}

    def read(self, node: fx.Node) -> None:
        known = self.values.__getitem__
        self.values[node] = self._value(node, fx.node.map_arg(node.args, known), fx.node.map_arg(node.kwargs, known))

    def _value(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "placeholder":
            return self.graph.input
        if node.target in (operator.getitem, getattr):
            return self._part(*args)
        if node.target == "size":
            return self._part(self._part(args[0], "shape"), *args[1:])
        if node.target is torch.cat and args and set(kwargs) <= {"dim"}:
            return text.joined(*args, **kwargs)
        operation = self.root.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        value = args[0] if args else None
        if type(operation) is nn.Embedding and value is self.graph.input and not self.graph.length:
            return text.embedded(operation, value.shape, self.offsets)
        if isinstance(value, text.Text) and value.features is None:
            return text.after(value, operation, (*args[1:], *kwargs.values()), self.offsets)
        x = self._begun(value)
        return x if node.op == "output" else self._layer(operation, node.name, x, args[1:], kwargs)

    def _begun(self, value: Any) -> Values:
        if isinstance(value, text.Text) and value.features is not None:
            value = self.graph.begin(value, value.features)
        return self.graph.read(value)

    def _layer(self, operation: Any, name: str, x: Values, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        if isinstance(operation, nn.Module):
            return append(self.graph, operation, x)
        if operation in functions.SUMS and len(args) == 1 and not kwargs:
            total = sum_of(self.graph, x, self.graph.read(args[0]))
            if operation in functions.SUMS_IN_PLACE:
                self.graph.overwrite(x)
            return total
        if operation is functional.pad and (channels := functions.padded_channels(x, *args, **kwargs)):
            return shortcut(self.graph, x, (1, 1), *channels)
        if operation in ("view", "reshape", torch.reshape):
            return self._flatten(x, args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args)
        if operation not in functions.MODULES:
            raise self.graph.unknown(name)
        for module in functions.MODULES[operation](*args, **kwargs):
            x = append(self.graph, module, x)
        return x

    def _part(self, value: Any, key: Any = slice(None)) -> Any:
        if isinstance(value, Values) and key == "shape":
            return (_BATCH, *value.shape)
        if isinstance(value, Values) and (stride := functions.stride_of(value, key)):
            return shortcut(self.graph, self.graph.read(value), stride, 0, 0)
        if isinstance(value, tuple) and isinstance(key, int | slice):
            return value[key]
        raise self.graph.unknown(str(key))

    def _flatten(self, x: Values, sizes: Sequence[Any]) -> Values:
        features = math.prod(x.shape)
        if tuple(sizes) in ((_BATCH, -1), (_BATCH, features), (-1, features)):
            return append(self.graph, nn.Flatten(), x)
        raise self.graph.unknown("reshape")


_BATCH = object()  # the first dimension of every activation
