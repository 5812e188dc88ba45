"""Who holds what: one set of training examples and a list of indices for each device."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedasmu.data.examples import Examples
from fedasmu.errors import UserError
from fedasmu.protocol import Workload
from fedasmu.seeding import derive

Pair = tuple[Any, Any]
"""Inputs and targets, as tensors or numpy arrays."""
LOOKED_AT = 1 << 26  # bytes of inputs that data are known by


@dataclass(frozen=True, repr=False)
class FederatedData:
    name: str
    train: Examples
    test: Examples
    shards: Sequence[Tensor]
    classes: int
    held: Sequence[Tensor] = ()  # what each device measures on, and does not train on
    words: Sequence[str] = ()  # of texts: the word of each number

    def __repr__(self) -> str:
        many = f"{len(self.train):,} examples to train on and {len(self.test):,} to test on"
        return f"<{self.name}: {many}, of shape {'x'.join(map(str, self.shape))}, on {len(self.shards)} devices>"

    @classmethod
    def of(
        cls,
        train: Pair | TorchDataset[Any],
        test: Pair | TorchDataset[Any],
        devices: Sequence[Sequence[int] | Tensor],
        classes: int | None = None,
    ) -> FederatedData:
        """Your own data: (inputs, targets) to train and to test on, and the indices that each device holds.

        Inputs and targets are tensors or numpy arrays; a torch Dataset of such pairs is read into memory. Targets are
        classes, one whole number each, or numbers with a point, one or several each, for a loss such as "mse".
        """
        train, test = _tensors("train", train), _tensors("test", test)
        count = len(train[1])
        for name, (inputs, targets) in (("train", train), ("test", test)):
            if len(inputs) != len(targets) or not len(targets):
                raise UserError(
                    f"{name}: {len(inputs)} inputs and {len(targets)} targets; need as many of each, and some"
                )
        _alike(train, test)
        shards = _shards(devices)
        for device, shard in enumerate(shards):
            if not len(shard):
                raise UserError(f"devices[{device}] holds no example; every device needs at least one")
            if shard.min() < 0 or shard.max() >= count:
                raise UserError(f"devices[{device}] has indices outside 0..{count - 1}")
        if not shards:
            raise UserError("devices is empty: there must be at least one")
        if train[1].is_floating_point():
            return cls("your own", Examples(*train), Examples(*test), shards, _numbers(train[1], test[1], classes))
        largest = int(max(train[1].max(), test[1].max()))
        classes = largest + 1 if classes is None else classes
        if largest >= classes or min(train[1].min(), test[1].min()) < 0:
            raise UserError(f"targets must be classes 0..{classes - 1}")
        learn, judge = (Examples(inputs, targets.to(torch.int64)) for inputs, targets in (train, test))
        return cls("your own", learn, judge, shards, classes)

    @property
    def classifies(self) -> bool:
        """Whether the targets are classes; `classes` is otherwise how many numbers are predicted."""
        return not self.train.targets.is_floating_point()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def fingerprint(self) -> str:
        """By which they are known again: of all targets and shards, and of many inputs some of their rows."""
        digest = sha256()
        for part in (self.train, self.test):
            few = part.inputs[:: 1 + part.inputs.nbytes // LOOKED_AT]
            for tensor in (few, part.targets, part.scale, part.shift):
                _add(digest, tensor)
            digest.update(str(tuple(part.inputs.shape)).encode())
        for shard in self.shards:
            _add(digest, shard)
        return digest.hexdigest()

    def workload(self, device: int, batch: int, epochs: int) -> Workload:
        return Workload(len(self.shards[device]), batch, epochs)

    def holding_out(self, share: float, seed: int) -> FederatedData:
        """The same data, of which each device keeps this share to measure on."""
        parts = [hold_out(shard, share, derive(seed, "device", device)) for device, shard in enumerate(self.shards)]
        return replace(self, shards=[kept for kept, _ in parts], held=[held for _, held in parts])


def _add(digest: Any, tensor: Tensor | None) -> None:
    if tensor is not None:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)


def held_count(examples: int, share: float) -> int:
    """How many of a device's examples it holds out: of two and more at least one, and never all."""
    return min(max(round(share * examples), 1), examples - 1) if share else 0


def hold_out(shard: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """What a device trains on and what it measures on, both in the order of the shard."""
    order = torch.randperm(len(shard), generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(len(shard), dtype=torch.bool)
    held[order[: held_count(len(shard), share)]] = True
    return shard[~held], shard[held]


def _tensors(name: str, given: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets, whichever way they are given. Numbers in another precision become single: models are."""
    try:
        if isinstance(given, TorchDataset):
            examples = [given[place] for place in range(len(given))]  # type: ignore[arg-type]
            given = tuple(
                torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*examples, strict=True)
            )
        inputs, targets = (torch.as_tensor(part).contiguous() for part in given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name}: must be (inputs, targets), two tensors or numpy arrays, or a torch Dataset of such pairs; "
            f"this {type(given).__name__} is none: {error}"
        ) from None
    if targets.is_floating_point():
        targets = targets.float().reshape(*targets.shape[:1], math.prod(targets.shape[1:]))
        if not bool(torch.isfinite(targets).all()):
            raise UserError(f"{name}: the targets are not all finite numbers")
    elif targets.dim() != 1:
        raise UserError(
            f"{name}: targets must be classes, one whole number each, not {targets.dtype} {tuple(targets.shape)}"
        )
    if inputs.is_floating_point():
        inputs = inputs.float()
        if not bool((finite := torch.isfinite(inputs)).all()):
            first = int((~finite.flatten(1).all(1) if inputs.dim() > 1 else ~finite).nonzero()[0])
            others = f"example {first} is the first that has others"
            raise UserError(f"{name}: the inputs are not all finite numbers; {others}")
    return inputs, targets


def _alike(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
    """One model learns from the one and is judged by the other."""
    one, other = (tuple(inputs.shape[1:]) for inputs, _ in (train, test))
    if one != other:
        raise UserError(f"train has inputs of shape {one}, and test of shape {other}; both must have the same")
    kinds = ["numbers with a point" if targets.is_floating_point() else "classes" for _, targets in (train, test)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"train has targets that are {kinds[0]} ({train[1].dtype}), and test {kinds[1]} ({test[1].dtype}); "
            "both must have the same"
        )


def _shards(devices: Any) -> list[Tensor]:
    """The indices of each device, none of them guessed: a mask, for one, would pass for the indices 0 and 1."""
    try:
        given = None if isinstance(devices, Mapping) else list(devices)
    except TypeError:
        given = None
    if given is None:
        raise UserError(f"devices = {_shown(devices)}: must be a list with the indices that each device holds")
    return [_indices(device, one) for device, one in enumerate(given)]


def _indices(device: int, given: Any) -> Tensor:
    if isinstance(given, Tensor):
        dimensions = given.dim()
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    else:
        try:
            array = np.asarray(given)
        except (TypeError, ValueError):  # lists of different lengths, for one
            array = np.asarray(None)
        mixed = isinstance(given, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, given))
        dimensions, whole = array.ndim, array.dtype.kind in "iu" and not mixed
    if dimensions != 1 or (len(given) and not whole):
        raise UserError(
            f"devices[{device}] = {_shown(given)}: must be the indices that the device holds, "
            "a one-dimensional list, array or tensor of whole numbers"
        )
    return given.to(torch.int64) if isinstance(given, Tensor) else torch.from_numpy(array.astype(np.int64))


def _shown(given: Any) -> str:
    """A value in a line of a message: of arrays what they are, not what is in them."""
    if hasattr(given, "dtype") and hasattr(given, "shape"):
        return f"{type(given).__name__} of {given.dtype} {tuple(given.shape)}"
    return reprlib.repr(given)


def _numbers(train: Tensor, test: Tensor, classes: int | None) -> int:
    """How many numbers are predicted for each example."""
    if classes is not None:
        raise UserError(f"classes = {classes}: the targets are numbers with a point, so there are no classes")
    if train.shape[1:] != test.shape[1:]:
        raise UserError(f"train has {train.shape[1]} targets for each example, and test {test.shape[-1]}")
    return train.shape[1]
