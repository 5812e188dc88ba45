"""PyTorch's modules as layers of the native engine, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from fedasmu.engines.native.graph import Graph, Kind, Pair, Sides, Unsupported, Values

MOST_STRIDE = 8


class _Misfit(Exception):
    """Why a module cannot become a layer."""


def append(graph: Graph, module: nn.Module, x: Values) -> Values:
    """What the module makes of x."""
    add = _MODULES.get(type(module))
    if add is None or (any(x.border) and type(module) is not nn.Conv2d):
        raise graph.unknown(type(module).__name__)
    graph.length += 1
    try:
        made = add(graph, module, x)
    except _Misfit as problem:
        raise Unsupported(f"layer {graph.length} ({type(module).__name__}) {problem}") from None
    if getattr(module, "inplace", False) and made is not x:
        graph.overwrite(x)
    return made


def sum_of(graph: Graph, a: Values, b: Values) -> Values:
    """The sum of two tensors of one shape."""
    graph.length += 1
    if a.shape != b.shape or any(a.border) or any(b.border):
        raise Unsupported(f"layer {graph.length} (sum) adds tensors of shapes {a.shape} and {b.shape}")
    return graph.push(Kind.SUM, a, a.shape, other=b.tensor)


def shortcut(graph: Graph, x: Values, stride: Pair, front: int, back: int) -> Values:
    """Every stride-th pixel of an image, with channels of zeros in front and behind."""
    channels, height, width = x.shape
    sides = [-(-side // step) for side, step in zip((height, width), stride, strict=True)]
    shape = (front + channels + back, *sides)
    add = graph.push if front or back else graph.view
    return add(Kind.SHORTCUT, x, shape, stride=stride, front=front)


def _slide(x: Values, kernel: Pair, stride: Pair, padding: Sides = (0, 0, 0, 0)) -> Pair:
    """The height and width of what a window leaves of x."""
    if len(x.shape) != 3:
        raise _misfit(x)
    room = [x.shape[1 + axis] + padding[axis] + padding[axis + 2] - kernel[axis] for axis in (0, 1)]
    if min(room) < 0:
        raise _misfit(x)
    return room[0] // stride[0] + 1, room[1] // stride[1] + 1


def _misfit(x: Values) -> _Misfit:
    return _Misfit(f"does not fit its input of shape {x.shape}")


def _convolution(graph: Graph, module: nn.Conv2d, x: Values) -> Values:
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _padding(module)
    if module.groups != 1 or _pair(module.dilation) != (1, 1) or module.padding_mode != "zeros":
        raise _Misfit("has groups, a dilation or a padding mode")
    if max(stride) > MOST_STRIDE:
        raise _Misfit(f"has a stride above {MOST_STRIDE}")
    around: Sides = tuple(map(sum, zip(padding, x.border, strict=True)))  # type: ignore[assignment]
    size = _slide(x, kernel, stride, around)
    if x.shape[0] != module.in_channels:
        raise _misfit(x)
    settings = {"kernel": kernel, "stride": stride, "padding": around, **_parameters(graph, module)}
    return graph.push(Kind.CONVOLUTION, x, (module.out_channels, *size), **settings)


def _linear(graph: Graph, module: nn.Linear, x: Values) -> Values:
    if x.shape != (module.in_features,):
        raise _misfit(x)
    return graph.push(Kind.LINEAR, x, (module.out_features,), **_parameters(graph, module))


def _parameters(graph: Graph, module: nn.Module) -> dict[str, int]:
    return {"weight": graph.offset(module.weight), "bias": graph.offset(module.bias)}  # type: ignore[arg-type]


def _batch_norm(graph: Graph, module: nn.BatchNorm2d | nn.BatchNorm1d, x: Values) -> Values:
    if x.shape[0] != module.num_features or len(x.shape) != (3 if type(module) is nn.BatchNorm2d else 1):
        raise _misfit(x)
    if not module.track_running_stats or module.running_mean is None or module.momentum is None:
        raise _Misfit("has no running statistics, or averages them over all batches")
    if graph.text:
        raise _Misfit("follows a text")
    statistics = {"mean": graph.offset(module.running_mean), "variance": graph.offset(module.running_var)}
    numbers = {"eps": module.eps, "momentum": module.momentum}
    return graph.push(Kind.BATCH_NORM, x, x.shape, **_parameters(graph, module), **statistics, **numbers)


def _group_norm(graph: Graph, module: nn.GroupNorm, x: Values) -> Values:
    if x.shape[0] != module.num_channels:
        raise _misfit(x)
    settings = {"groups": module.num_groups, "eps": module.eps}
    return graph.push(Kind.GROUP_NORM, x, x.shape, **_parameters(graph, module), **settings)


def _maximum(graph: Graph, module: nn.MaxPool2d, x: Values) -> Values:
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    if _pair(module.padding) != (0, 0) or _pair(module.dilation) != (1, 1):
        raise _Misfit("has a padding or a dilation")
    if module.ceil_mode or module.return_indices:
        raise _Misfit("has ceil_mode or return_indices")
    return graph.push(Kind.MAXIMUM, x, (x.shape[0], *_slide(x, kernel, stride)), kernel=kernel, stride=stride)


def _average(graph: Graph, module: nn.AvgPool2d, x: Values) -> Values:
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    if _pair(module.padding) != (0, 0) or module.ceil_mode or module.divisor_override:
        raise _Misfit("has a padding, ceil_mode or a divisor of its own")
    return graph.push(Kind.AVERAGE, x, (x.shape[0], *_slide(x, kernel, stride)), kernel=kernel, stride=stride)


def _adaptive_average(graph: Graph, module: nn.AdaptiveAvgPool2d, x: Values) -> Values:
    if len(x.shape) != 3:
        raise _misfit(x)
    asked = module.output_size if isinstance(module.output_size, tuple | list) else [module.output_size] * 2
    size = [side if wanted is None else wanted for side, wanted in zip(x.shape[1:], asked, strict=True)]
    if any(side % wanted for side, wanted in zip(x.shape[1:], size, strict=True)):
        raise _Misfit(f"cuts an input of shape {x.shape} into unequal windows")
    kernel = (x.shape[1] // size[0], x.shape[2] // size[1])
    return graph.push(Kind.AVERAGE, x, (x.shape[0], *size), kernel=kernel, stride=kernel)


def _relu(graph: Graph, module: nn.ReLU, x: Values) -> Values:
    return graph.push(Kind.MAXIMUM, x, x.shape, relu=True)  # of one element; fuse.py spares most of them


def _flatten(graph: Graph, module: nn.Flatten, x: Values) -> Values:
    if module.start_dim != 1 or module.end_dim not in (-1, len(x.shape)):
        raise _Misfit("does not flatten each sample to one dimension")
    return graph.view(Kind.FLATTEN, x, (math.prod(x.shape),)) if len(x.shape) > 1 else x


def _zero_pad(graph: Graph, module: nn.ZeroPad2d, x: Values) -> Values:
    left, right, top, bottom = module.padding
    if len(x.shape) != 3 or min(module.padding) < 0:
        raise _Misfit("crops its input, or pads something else than an image")
    return replace(x, border=(top, left, bottom, right), memory=object())


def _dropout(graph: Graph, module: nn.Dropout, x: Values) -> Values:
    if module.p == 0 or not module.training:
        return x
    if len(x.shape) > 1:
        graph.randomness = f"layer {graph.length} (Dropout) drops from images"
        return x
    graph.dropouts.append((x.shape[0], module.p))
    return graph.push(Kind.DROPOUT, x, x.shape)


def _identity(graph: Graph, module: nn.Identity, x: Values) -> Values:
    return x


_MODULES: dict[type[nn.Module], Callable[[Graph, Any, Values], Values]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.MaxPool2d: _maximum,
    nn.AvgPool2d: _average,
    nn.AdaptiveAvgPool2d: _adaptive_average,
    nn.ReLU: _relu,
    nn.Flatten: _flatten,
    nn.ZeroPad2d: _zero_pad,
    nn.Dropout: _dropout,
    nn.Identity: _identity,
}


def _pair(size: Any) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _padding(module: nn.Conv2d) -> Sides:
    """PyTorch also takes the words "valid" and "same"; "same" pads an even kernel by one more at the end."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    y, x = _pair([size - 1 for size in module.kernel_size] if module.padding == "same" else module.padding)
    return (y // 2, x // 2, y - y // 2, x - x // 2) if module.padding == "same" else (y, x, y, x)
