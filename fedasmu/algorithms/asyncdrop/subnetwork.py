"""Which elements of a model's vector belong to which hidden unit, read from the names and shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedasmu.vector import Entry, Layout


@dataclass(frozen=True, slots=True)
class Hidden:
    """The units of a hidden layer: a row each of these tensors, and some columns of the next layer's weight."""

    units: int
    rows: tuple[Entry, ...]
    columns: Entry | None  # None: the next layer was not recognised, and its columns stay

    def drop(self, mask: Tensor, dropped: Tensor) -> None:
        for entry in self.rows:
            entry.view(mask)[dropped] = False
        if self.columns is not None:
            self._of_units(mask)[:, dropped] = False

    def score(self, change: Tensor) -> Tensor:
        """The sum over each unit's incoming and outgoing weights"""
        total = torch.stack([entry.view(change).reshape(self.units, -1).sum(1) for entry in self.rows]).sum(0)
        return total if self.columns is None else total + self._of_units(change).sum((0, 2))

    def _of_units(self, vector: Tensor) -> Tensor:
        """The next layer's weight. After a convolution and a flattening, a unit feeds several neighbouring columns."""
        assert self.columns is not None
        return self.columns.view(vector).view(self.columns.shape[0], self.units, -1)


def weights(layout: Layout) -> list[Entry]:
    return [entry for entry in layout.parameters if len(entry.shape) > 1]


def hidden_layers(layout: Layout, spare: int) -> list[Hidden]:
    """The layers whose units may be dropped: neither the first `spare` ones, as far as others are left, nor the last.

    A layer is taken to feed the next one if both are children of the same module and their widths fit. Others stay
    whole, for instance those that a residual connection goes around. Where not a single pair is recognised, units are
    dropped from all hidden layers, but by their rows alone.
    """
    pairs = list(pairwise(weights(layout)))
    found = [_hidden(layout, weight, following, following) for weight, following in pairs if _feeds(weight, following)]
    found = found or [_hidden(layout, weight, following, None) for weight, following in pairs]
    return found[min(spare, len(found) - 1) :] if found else []


def mask_of(layout: Layout, hidden: Sequence[Hidden], kept: Sequence[Sequence[int]]) -> Tensor:
    """Which elements of the vector belong to the sub-network of these units."""
    mask = torch.ones(layout.size, dtype=torch.bool)
    for layer, units in zip(hidden, kept, strict=True):
        dropped = torch.ones(layer.units, dtype=torch.bool)
        dropped[list(units)] = False
        layer.drop(mask, dropped)
    return mask


def work_share(layout: Layout, mask: Tensor) -> float:
    """What a step of the sub-network costs: the kept share of each layer's weights, all layers counting alike."""
    shares = [kept_share(entry.view(mask)) for entry in weights(layout)]
    return sum(shares) / len(shares) if shares else 1.0


def kept_share(mask: Tensor) -> float:
    return int(mask.count_nonzero()) / mask.numel()


def _feeds(weight: Entry, following: Entry) -> bool:
    units, inputs = weight.shape[0], following.shape[1]
    flattened = inputs % units == 0 and len(following.shape) == 2
    return _parent(weight) == _parent(following) and (inputs == units or flattened)


def _hidden(layout: Layout, weight: Entry, following: Entry, columns: Entry | None) -> Hidden:
    """With the biases and normalisations between the two weights, and their statistics."""
    owners = {_owner(entry) for entry in layout.parameters if weight.offset <= entry.offset < following.offset}
    vectors = [
        entry
        for entry in (*layout.parameters, *layout.buffers)
        if _owner(entry) in owners and entry.shape == weight.shape[:1]
    ]
    return Hidden(weight.shape[0], (weight, *vectors), columns)


def _owner(entry: Entry) -> str:
    return entry.name.rpartition(".")[0]


def _parent(entry: Entry) -> str:
    return _owner(entry).rpartition(".")[0]
