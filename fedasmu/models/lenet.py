"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), with ReLU and max-pool."""

from __future__ import annotations

from torch import nn

from fedasmu.models import shapes


def lenet5(shape: tuple[int, ...], classes: int, *, pad: int = 0) -> nn.Sequential:
    """Two 5x5 convolutions with pooling, dense layers of 120 and 84. `pad=2` treats 28x28 images as 32x32."""
    channels, height, width = shapes.image("lenet5", shape, 16 - 2 * pad)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=pad),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * _side(height + 2 * pad) * _side(width + 2 * pad), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _side(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2
