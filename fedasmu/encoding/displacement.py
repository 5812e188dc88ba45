"""A model as the way to it from another one that both sides have: fewer bytes, and an error that is known.

The differences of the trainable parameters are rounded by a code, all of them first multiplied by one power of two that
brings the largest to between 2^14 and 2^15: a code's whole range is used, and nothing overflows. BatchNorm's statistics
and frozen parameters follow as they are, in float32: a variance that is rounded could become negative.

A parameter that differs by d then arrives with the error of the code, a small part of |d| and a smaller one of the
largest difference, plus the rounding of float32 itself, or 2^-128 where that is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedasmu.encoding.rounding import TOP, Code, part
from fedasmu.vector import Layout

EXPONENTS = range(TOP - 128, 127)  # that `to` gives: 2^exponent and its inverse are both ordinary float32 numbers


@dataclass(frozen=True, slots=True)
class Displacement:
    exponent: int  # the differences are multiplied by two to this
    differences: Tensor  # of the trainable parameters, as the code has them
    rest: Tensor  # float32: the vector's tail as it is


@dataclass(frozen=True, slots=True)
class Reference:
    """A vector that both sides have."""

    vector: Tensor
    layout: Layout
    code: Code  # that displacements from it are told in
    label: str = ""  # by which the other side knows it

    @property
    def part(self) -> float:
        """What a displacement takes, as a part of a whole model's bytes."""
        return part(self.code, self.layout)

    def to(self, vector: Tensor) -> Displacement | None:
        """The way to this vector. None: it is no such vector, or is not finite, and can only be sent as it is."""
        if vector.shape != self.vector.shape or vector.dtype != torch.float32:
            return None
        trainable = self.layout.trainable
        difference = vector[:trainable] - self.vector[:trainable]
        largest = float(difference.abs().max()) if difference.numel() else 0.0  # it is empty where nothing is trained
        if not math.isfinite(largest):
            return None
        exponent = min(TOP - math.frexp(largest)[1], EXPONENTS[-1])
        return Displacement(exponent, self.code.encode(difference.mul_(2.0**exponent)), vector[trainable:])

    def plus(self, way: Displacement) -> Tensor:
        """Where this way leads: what both sides hold from then on. ValueError: nobody has told this way."""
        base = self.vector[: self.layout.trainable]  # of no elements, where only times are simulated
        moved = self.code.decode(way.differences, len(base)).mul_(2.0**-way.exponent).add_(base)
        return torch.cat([moved, way.rest])
