"""VGG-11 (Simonyan and Zisserman, "Very deep convolutional networks", ICLR 2015) for small images."""

from __future__ import annotations

from torch import nn

from fedasmu.models import shapes
from fedasmu.models.initialise import he_normal, he_throughout

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(
    shape: tuple[int, ...], classes: int, *, batch_norm: bool = False, head: str = "mlp", init: str = "default"
) -> nn.Sequential:
    """Eight 3x3 convolutions in five pooled stages, then dense layers of 512, 512 and `classes`, or the last alone."""
    channels, height, width = shapes.image("vgg11", shape, 32)
    layers: list[nn.Module] = []
    for stage in STAGES:
        for outputs in stage:
            layers.append(nn.Conv2d(channels, outputs, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    inputs = channels * (height // 32) * (width // 32)
    for hidden in (512, 512) if head == "mlp" else ():
        layers += [nn.Linear(inputs, hidden), nn.ReLU()]
        inputs = hidden
    network = nn.Sequential(*layers, nn.Linear(inputs, classes))
    initialise = he_throughout if init == "he" else he_normal
    initialise(network)
    return network
