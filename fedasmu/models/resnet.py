"""ResNet-20 (He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedasmu.models import shapes
from fedasmu.models.initialise import he_normal


def resnet20(shape: tuple[int, ...], classes: int, *, shortcut: str = "A", norm: str = "batch") -> nn.Sequential:
    """Three stages of three blocks, of widths 16, 32 and 64, then global average pooling."""
    channels, _, _ = shapes.image("resnet20", shape, 4)
    blocks: list[nn.Module] = []
    inputs = 16
    for width in (16, 32, 64):
        for _ in range(3):
            blocks.append(Block(inputs, width, shortcut, norm))
            inputs = width
    stem = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), _norm(norm, 16), nn.ReLU()]
    network = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    he_normal(network)
    return network


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a change of width halves the image."""

    def __init__(self, inputs: int, outputs: int, shortcut: str, norm: str) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            _norm(norm, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            _norm(norm, outputs),
        )
        self.shortcut: nn.Module
        if inputs == outputs:
            self.shortcut = nn.Identity()
        elif shortcut == "A":
            self.shortcut = ZeroChannels(outputs - inputs)
        else:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, _norm(norm, outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.residual(x) + self.shortcut(x))  # type: ignore[no-any-return]


class ZeroChannels(nn.Module):
    """Option A: every other pixel, and zeros for the channels there were not."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))


def _norm(norm: str, channels: int) -> nn.Module:
    # Two groups: statistics of its own image only, which survive the mixing of models where BatchNorm's do not.
    return nn.GroupNorm(2, channels) if norm == "group" else nn.BatchNorm2d(channels)
