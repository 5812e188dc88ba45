"""The CNN of the paper's appendix, and the pooled CNN of its authors' other code."""

from __future__ import annotations

from torch import nn

from fedasmu.models import shapes


def cnn(shape: tuple[int, ...], classes: int, *, padding: str = "valid") -> nn.Sequential:
    """Convolutions 64@2x2 and 32@2x2, then one dense layer. The appendix does not state the padding."""
    same = padding == "same"
    channels, height, width = shapes.image("cnn", shape, 1 if same else 3)
    shrink = 0 if same else 2
    return nn.Sequential(
        *_convolution(channels, 64, same),
        nn.ReLU(),
        *_convolution(64, 32, same),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height - shrink) * (width - shrink), classes),
    )


def cnn_tf(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Convolutions 32, 64, 64 @3x3, the first two pooled, then a dense layer of 64."""
    channels, height, width = shapes.image("cnn_tf", shape, 18)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * _side(height) * _side(width), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def _convolution(inputs: int, outputs: int, same: bool) -> list[nn.Module]:
    # An even kernel needs one more row and column on one side only, which a Conv2d's own padding cannot say in numbers.
    border: list[nn.Module] = [nn.ZeroPad2d((0, 1, 0, 1))] if same else []
    return [*border, nn.Conv2d(inputs, outputs, 2)]


def _side(side: int) -> int:
    return ((side - 2) // 2 - 2) // 2 - 2
