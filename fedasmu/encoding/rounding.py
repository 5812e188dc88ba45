"""How the differences between two models are rounded on their way, and what they weigh then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedasmu.vector import Layout

Precision = Literal["float32", "float16", "float14"]
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
    """The nearest of float16's numbers. Those reach to 2^16, so none that is given overflows.

    A number x arrives with an error of at most 2^-11 |x|, plus 2^-39 of the largest one.
    """

    dtype = torch.float16

    def length(self, count: int) -> int:
        return count

    def encode(self, numbers: Tensor) -> Tensor:
        return numbers.half()

    def decode(self, sent: Tensor, count: int) -> Tensor:
        return sent.float()


class Float14:
    """A sign, three bits of exponent and ten of mantissa; four numbers in seven bytes, the first in the lowest bits.

    These are float16's numbers below 2^-7, which have the upper two bits of the exponent in common: both are zero. So
    everything is brought there, and what would be rounded up to 2^-7 becomes the largest number below it. There is no
    infinity. A number x arrives with an error of at most 2^-11 |x|, or of 2^-17 of the largest one where that is more.
    """

    dtype = torch.uint8

    def length(self, count: int) -> int:
        return 7 * -(-count // 4)

    def encode(self, numbers: Tensor) -> Tensor:
        bits = np.zeros(self.length(len(numbers)) // 7 * 4, np.uint16)  # the last seven bytes are filled with zeros
        bits[: len(numbers)] = numbers.mul_(2.0**-DOWN).half().numpy().view(np.uint16)
        codes = np.minimum(bits & 0x7FFF, 0x1FFF) | bits >> 2 & 0x2000
        spread = codes.astype("<u2", copy=False).view("<u8")
        packed = np.zeros_like(spread)
        for place in range(4):
            packed |= spread >> 2 * place & 0x3FFF << 14 * place
        return torch.from_numpy(packed.view(np.uint8).reshape(-1, 8)[:, :7].flatten())

    def decode(self, sent: Tensor, count: int) -> Tensor:
        packed = np.zeros((len(sent) // 7, 8), np.uint8)
        packed[:, :7] = sent.numpy().reshape(-1, 7)
        spread = np.zeros(len(packed), "<u8")
        for place in range(4):
            spread |= packed.view("<u8")[:, 0] << 2 * place & 0x3FFF << 16 * place
        codes = spread.view("<u2").astype(np.uint16, copy=False)
        if codes[count:].any():
            raise ValueError("bits that stand for no number are not zero")
        bits = codes[:count] & 0x1FFF | (codes[:count] & 0x2000) << 2
        return torch.from_numpy(bits.view(np.float16)).float().mul_(2.0**DOWN)


DOWN = TOP + 7  # powers of two from what a code is given to what float14 can tell

CODES: Mapping[str, Code] = {"float16": Float16(), "float14": Float14()}


def part(code: Code, layout: Layout) -> float:
    """What a displacement in this code takes, as a part of a whole model's bytes."""
    rest = layout.size - layout.trainable
    return (code.dtype.itemsize * code.length(layout.trainable) + 4 * rest) / layout.bytes
