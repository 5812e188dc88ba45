"""What the engine is handed, checked: every tensor's type, shape and range, before native code touches it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedasmu.data.examples import Examples


def tensor(name: str, value: Tensor, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> Tensor:
    """The tensor itself, if it is a dense CPU tensor of one of the dtypes and shapes."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}, not a tensor")
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise ValueError(
            f"{name} is a {value.layout} tensor on {value.device}: the native engine needs a dense one on the CPU"
        )
    if value.dtype not in dtypes:
        raise ValueError(f"{name} has dtype {value.dtype}, not {' or '.join(str(dtype) for dtype in dtypes)}")
    if tuple(value.shape) not in shapes:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, not {' or '.join(str(shape) for shape in shapes)}")
    if not value.is_contiguous():
        raise ValueError(f"{name} is not contiguous")
    return value


def texts(value: Examples, length: int, indices: Tensor | None, vocabulary: int) -> None:
    """Tokens that the network has vectors for."""
    tensor("inputs", value.inputs, (torch.int32, torch.int64), (len(value.targets), length))
    tensor("targets", value.targets, (torch.int64,), (len(value.targets),))
    _range("tokens", value.inputs if indices is None else value.inputs[indices], vocabulary, "words")


def examples(value: Examples, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scale and shift of each channel of examples that fit the network."""
    count, channels = len(value.targets), shape[0]
    tensor("inputs", value.inputs, (torch.uint8, torch.float32), (count, *shape))
    tensor("targets", value.targets, (torch.int64,), (count,))
    if value.scale is None or value.shift is None:
        if value.inputs.dtype == torch.uint8:
            raise ValueError("inputs are uint8 and have no scale and shift")
        return torch.ones(channels), torch.zeros(channels)
    scale = tensor("scale", value.scale, (torch.float32,), (channels,), (1,))
    shift = tensor("shift", value.shift, (torch.float32,), (channels,), (1,))
    return scale.expand(channels).contiguous(), shift.expand(channels).contiguous()


def batches(values: Sequence[Tensor], count: int) -> Tensor:
    """The indices of all batches, one after the other: each batch has at least one, and all are below `count`."""
    for value in values:
        length = value.numel() if isinstance(value, Tensor) else 0
        tensor("a batch of indices", value, (torch.int64,), (length,))
        if not length:
            raise ValueError("a batch of indices is empty")
    indices = torch.cat(list(values))
    low, high = (int(bound) for bound in indices.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"the indices reach from {low} to {high}, but there are {count} examples")
    return indices


def labels(value: Tensor, classes: int) -> None:
    _range("targets", value, classes, "classes")


def _range(name: str, value: Tensor, count: int, unit: str) -> None:
    if not value.numel():
        raise ValueError("there are no examples")
    low, high = (int(bound) for bound in value.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"{name} reach from {low} to {high}, but the network has {count} {unit}")
