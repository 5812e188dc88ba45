"""Training images altered at random, as is usual for CIFAR: shifted within a black border, and mirrored.

Everything random follows from a seed for each batch, so the same step of a task sees the same images wherever, and
however often, it is performed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedasmu.data.examples import Examples

BORDER = 4  # pixels of zeros on each side


def augment(images: Tensor, how: str, seed: int) -> Tensor:
    """Each image of (n, channels, height, width) cut out of its bordered self; with "crop+flip", half are mirrored."""
    count, _, height, width = images.shape
    generator = torch.Generator().manual_seed(seed)
    top, left = torch.randint(2 * BORDER + 1, (2, count), generator=generator)
    windows = pad(images, (BORDER,) * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view of all of them
    crops = windows[torch.arange(count), :, top, left]
    if how == "crop":
        return crops
    mirrored = torch.randint(2, (count, 1, 1, 1), generator=generator) == 1
    return torch.where(mirrored.to(crops.device), crops.flip(3), crops)


def augmented(
    examples: Examples, batches: Sequence[Tensor], how: str, seeds: Sequence[int]
) -> tuple[Examples, list[Tensor]]:
    """The examples of these batches alone, augmented, and where each batch is among them."""
    inputs = [augment(examples.inputs[batch], how, seed) for batch, seed in zip(batches, seeds, strict=True)]
    order = torch.cat(list(batches))
    places = torch.split(torch.arange(len(order)), [len(batch) for batch in batches])
    return replace(examples, inputs=torch.cat(inputs), targets=examples.targets[order]), list(places)
