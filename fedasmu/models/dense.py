"""Networks without convolutions, for any shape of input."""

from __future__ import annotations

import math

from torch import nn

from fedasmu.models import shapes


def softmax(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Softmax regression: with cross-entropy, a convex problem."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_inputs("softmax", shape), classes))


def mlp(shape: tuple[int, ...], classes: int, *, hidden: int = 200) -> nn.Sequential:
    """One hidden layer of `hidden` units."""
    shapes.positive("mlp", hidden=hidden)
    return nn.Sequential(nn.Flatten(), nn.Linear(_inputs("mlp", shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _inputs(model: str, shape: tuple[int, ...]) -> int:
    if not shape or min(shape) < 1:
        raise ValueError(f"{model} needs at least one number per sample, but the data has shape {shape}")
    return math.prod(shape)
