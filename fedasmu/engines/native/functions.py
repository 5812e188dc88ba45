"""Functions and methods of PyTorch, as the modules that do the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedasmu.engines.native.graph import Pair, Unsupported, Values

SUMS_IN_PLACE = (operator.iadd, "add_")
SUMS: tuple[Any, ...] = (operator.add, torch.add, "add", *SUMS_IN_PLACE)


def stride_of(x: Values, key: Any) -> Pair | None:
    """The steps of x[:, :, ::a, ::b], None if `key` is something else."""
    if len(x.shape) != 3 or not isinstance(key, tuple) or not all(isinstance(part, slice) for part in key):
        return None
    steps = [(part.step or 1) if part.start in (None, 0) and part.stop is None else 0 for part in key]
    if len(steps) != 4 or steps[:2] != [1, 1] or min(steps) < 1:
        return None
    return steps[2], steps[3]


def padded_channels(x: Values, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Pair | None:
    """How many channels of zeros functional.pad puts before and after an image's, None if it does other things."""
    zeros = mode == "constant" and not value
    if not zeros or len(x.shape) != 3 or len(pad) != 6 or any(pad[:4]) or min(pad) < 0:
        return None
    return pad[4], pad[5]


def _relu(inplace: bool = False) -> list[nn.Module]:
    return [nn.ReLU(inplace)]


def _relu_in_place() -> list[nn.Module]:
    return [nn.ReLU(inplace=True)]


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> list[nn.Module]:
    return [nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)]


def _average_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> list[nn.Module]:
    return [nn.AvgPool2d(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)]


def _adaptive_average_pool(output_size: Any) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(output_size)]


def _mean(dim: Any = None, keepdim: bool = False) -> list[nn.Module]:
    """Over the pixels of an image."""
    if not isinstance(dim, tuple | list) or sorted(axis % 4 for axis in dim) != [2, 3]:
        raise Unsupported("the network has a mean over something else than the pixels of an image")
    return [nn.AdaptiveAvgPool2d(1), *([] if keepdim else [nn.Flatten()])]


def _flatten(start_dim: int = 0, end_dim: int = -1) -> list[nn.Module]:
    return [nn.Flatten(start_dim, end_dim)]


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> list[nn.Module]:
    return [nn.Dropout(p, inplace) if training else nn.Identity()]


def _same() -> list[nn.Module]:
    return [nn.Identity()]


MODULES: dict[Any, Callable[..., list[nn.Module]]] = {
    functional.relu: _relu,
    torch.relu: _relu,
    "relu": _relu,
    "relu_": _relu_in_place,
    torch.relu_: _relu_in_place,
    functional.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    functional.avg_pool2d: _average_pool,
    functional.adaptive_avg_pool2d: _adaptive_average_pool,
    torch.mean: _mean,
    "mean": _mean,
    torch.flatten: _flatten,
    "flatten": _flatten,
    functional.dropout: _dropout,
    "contiguous": _same,
}
