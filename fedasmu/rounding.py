"""How the differences between two models are rounded on their way, and what they weigh then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedasmu.vector import Layout

Precision = Literal["float32", "float16"]
"""Of models on their way; float32: they go whole."""

TOP = 15  # a code is given numbers below 2 to this, the largest of them at least half of it


class Code(Protocol):
    """Numbers in fewer bytes than float32's four, always as many for as many numbers."""

    dtype: torch.dtype  # of what is sent

    def length(self, count: int) -> int:
        """Of what is sent for so many numbers."""

    def encode(self, numbers: Tensor) -> Tensor:
        """What is sent for these numbers, which may be written over."""

    def decode(self, sent: Tensor, count: int) -> Tensor:
        """The numbers as they arrive, in memory of their own. ValueError: nobody has sent this for so many."""


class Float16:
    """The nearest of float16's numbers, of whose range up to 2^16 the half is used that nothing overflows from."""

    dtype = torch.float16

    def length(self, count: int) -> int:
        return count

    def encode(self, numbers: Tensor) -> Tensor:
        return numbers.half()

    def decode(self, sent: Tensor, count: int) -> Tensor:
        return sent.float()


CODES: Mapping[str, Code] = {"float16": Float16()}


def part(code: Code, layout: Layout) -> float:
    """What a displacement in this code takes, as a part of a whole model's bytes."""
    rest = layout.size - layout.trainable
    return (code.dtype.itemsize * code.length(layout.trainable) + 4 * rest) / layout.bytes
