"""AlexNet (Krizhevsky et al., "ImageNet classification with deep convolutional networks", 2012) for small images."""

from __future__ import annotations

from torch import nn

from fedasmu.models import shapes
from fedasmu.models.initialise import he_throughout

WIDTHS = {
    "small": (64, 192, 384, 256, 256),
    "large": (96, 256, 384, 384, 256),
    "gap": (64, 192, 384, 256, 256),
}


def alexnet(shape: tuple[int, ...], classes: int, *, size: str = "small", init: str = "default") -> nn.Sequential:
    """Five 3x3 convolutions with three poolings; the paper does not say which of these sizes it used."""
    network = nn.Sequential(*_layers(shape, classes, size))
    if init == "he":
        he_throughout(network)
    return network


def _layers(shape: tuple[int, ...], classes: int, size: str) -> list[nn.Module]:
    channels, height, width = shapes.image("alexnet", shape, 8)
    layers: list[nn.Module] = []
    for index, outputs in enumerate(WIDTHS[size]):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
        if index in (0, 1, 4):
            layers.append(nn.MaxPool2d(2))
        channels = outputs
    if size == "gap":
        return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    flat = channels * (height // 8) * (width // 8)
    return [*layers, nn.Flatten(), *_head(flat, 4096 if size == "large" else 1024, classes, size)]


def _head(inputs: int, hidden: int, classes: int, size: str) -> list[nn.Module]:
    """Two hidden layers; only the large one, with 33 million weights here, has dropout."""
    drop: list[nn.Module] = [nn.Dropout(0.5)] if size == "large" else []
    first = [nn.Linear(inputs, hidden), nn.ReLU(), *drop]
    second = [nn.Linear(hidden, hidden), nn.ReLU(), *drop]
    return [*first, *second, nn.Linear(hidden, classes)]
