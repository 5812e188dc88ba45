"""Spares layers: most ReLUs can be part of the layer before them, or of the pooling after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedasmu.engines.native.graph import Kind, Layer, Unsupported

_WITH_RELU = (Kind.CONVOLUTION, Kind.LINEAR, Kind.MAXIMUM, Kind.SUM, Kind.BATCH_NORM, Kind.GROUP_NORM)


def fused(layers: Sequence[Layer]) -> list[Layer]:
    """The same network in fewer layers."""
    _check_all_are_read(layers)
    result = list(layers)
    at = 0
    while at < len(result):
        host = _host(result, at) if _is_relu(result[at]) else None
        if host is None:
            at += 1
        else:
            result[host] = replace(result[host], relu=True)
            result = _without(result, at)
    for at in range(1, len(result)):
        _relu_after_maximum(result, at)
    return result


def _check_all_are_read(layers: Sequence[Layer]) -> None:
    readers = _readers(layers)
    for at in range(len(layers) - 1):
        if not readers[at + 1]:
            raise Unsupported(f"the output of a layer ({layers[at].kind.name.lower()}) is not used")


def _readers(layers: Sequence[Layer]) -> Counter[int]:
    return Counter(source for layer in layers for source in layer.sources)


def _is_relu(layer: Layer) -> bool:
    return layer.kind is Kind.MAXIMUM and layer.kernel == layer.stride == (1, 1) and layer.relu


def _host(layers: Sequence[Layer], at: int) -> int | None:
    """Which earlier layer can apply the ReLU at `at`, because no other layer reads what it writes."""
    readers, source = _readers(layers), layers[at].reads
    # What is dropped may as well be dropped after the ReLU: it is the layer before the dropout that has it.
    while source > 0 and readers[source] == 1:
        before = layers[source - 1]
        if before.kind in _WITH_RELU:
            return source - 1
        if before.kind is not Kind.DROPOUT:
            return None
        source = before.reads
    return None


def _without(layers: Sequence[Layer], at: int) -> list[Layer]:
    """Whoever read the layer at `at` reads what that layer read."""

    def renamed(tensor: int) -> int:
        if tensor == at + 1:
            return layers[at].reads
        return tensor - 1 if tensor > at + 1 else tensor

    rest = [layer for index, layer in enumerate(layers) if index != at]
    return [replace(layer, reads=renamed(layer.reads), other=renamed(layer.other)) for layer in rest]


def _relu_after_maximum(layers: list[Layer], at: int) -> None:
    """The maximum of ReLUs is the ReLU of the maximum, and that is fewer ReLUs."""
    layer, before = layers[at], layers[layers[at].reads - 1]
    if layer.kind is not Kind.MAXIMUM or layer.reads == 0 or before.kind is not Kind.CONVOLUTION or not before.relu:
        return
    if _readers(layers)[layer.reads] == 1:
        layers[layer.reads - 1] = replace(before, relu=False)
        layers[at] = replace(layer, relu=True)
