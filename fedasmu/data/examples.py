"""What a data set is once it is read: tensors, and how a batch of them becomes a network's input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedasmu.data.description import Description
from fedasmu.data.reading import Array, Arrays
from fedasmu.seeding import derive


@dataclass(frozen=True)
class Examples:
    """Inputs and their targets. Images stay uint8 as long as possible: a batch is scaled when it is used.

    A network sees `inputs * scale + shift`, channel by channel, when `scale` is given; otherwise the plain inputs.
    """

    inputs: Tensor  # (n, ...): uint8 images (n, channels, height, width), float32 features, or int32 words (n, length)
    targets: Tensor  # (n,) int64 classes, or (n, k) float32 numbers to predict
    scale: Tensor | None = None  # (channels,) float32
    shift: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor | slice) -> tuple[Tensor, Tensor]:
        inputs, targets = (_rows(tensor, indices) for tensor in (self.inputs, self.targets))
        if inputs.dtype == torch.int32:  # words, which take half the memory until they are used
            inputs = inputs.long()
        if self._scaling is not None:
            scale, shift = self._scaling
            inputs = torch.addcmul(shift, inputs.float(), scale)
        return inputs, targets

    @cached_property
    def _scaling(self) -> tuple[Tensor, Tensor] | None:
        """Scale and shift of every number of an input: PyTorch is several times slower where it must spread them."""
        if self.scale is None or self.shift is None:
            return None
        shape = self.inputs.shape[1:]
        scale, shift = (one.view(-1, *[1] * (len(shape) - 1)).expand(shape) for one in (self.scale, self.shift))
        return scale.contiguous(), shift.contiguous()

    def to(self, device: torch.device) -> Examples:
        moved = (None if tensor is None else tensor.to(device) for tensor in (self.scale, self.shift))
        return Examples(self.inputs.to(device), self.targets.to(device), *moved)

    def subset(self, indices: Tensor) -> Examples:
        return replace(self, inputs=self.inputs[indices], targets=self.targets[indices])

    def some(self, count: int) -> Examples:
        """So many of the test examples: the same ones in every run, whatever its seed, so that runs can be compared."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(derive("test subset")))
        return self.subset(order[:count].sort().values.to(self.inputs.device))


def _rows(tensor: Tensor, indices: Tensor | slice) -> Tensor:
    """Those of these indices: copied row by row, where plain indexing would copy number by number."""
    return tensor[indices] if isinstance(indices, slice) else tensor.index_select(0, indices)


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Examples
    test: Examples
    classes: int
    users: Tensor | None = None  # (n,) the natural user of each training example, where the data set knows it
    words: tuple[str, ...] = ()  # the vocabulary of a text data set: the word of each number
    vectors: Tensor | None = None  # (words, width) float32, one row a word, where GloVe vectors were asked for
    folder: str = ""  # where it was read
    overlapping: bool = False  # each training example has a part of its user's one before it

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])


def normalisation(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Tensor | None, Tensor | None]:
    """Scale and shift such that `pixel * scale + shift = (pixel / 255 - mean) / std`."""
    if not mean:
        return None, None
    centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    return (1 / (255 * spread)).float(), (-centre / spread).float()


def dataset_of(description: Description, arrays: Arrays, vectors: Array | None = None) -> Dataset:
    scale, shift = normalisation(description.mean, description.std)
    name, classes = description.name, description.classes
    if len(arrays.train_targets) < description.train:  # a reader that takes less takes whole classes
        classes = int(arrays.train_targets.max()) + 1
        name = f"{name}-{classes}-of-{description.classes}"
    return Dataset(
        name=name,
        train=Examples(_tensor(arrays.train_inputs), _tensor(arrays.train_targets), scale, shift),
        test=Examples(_tensor(arrays.test_inputs), _tensor(arrays.test_targets), scale, shift),
        classes=classes,
        users=None if arrays.users is None else _tensor(arrays.users),
        words=arrays.words,
        vectors=None if vectors is None else _tensor(vectors),
        overlapping=description.overlapping,
    )


def _tensor(array: Array) -> Tensor:
    if not array.flags.writeable:  # a tensor cannot say that it must not be written to
        array = np.array(array)
    return torch.from_numpy(array)
