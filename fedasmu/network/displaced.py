"""Models in frames: whole, or as displacements from a model that the other side is known to have.

The head of a frame with a displacement has two more keys, `from`, the label of what it starts from, and `exponent`; in
the model's place are its differences in the run's code and its tail in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedasmu.encoding.displacement import EXPONENTS, Displacement, Reference
from fedasmu.network.bounds import Malformed

LABEL = re.compile(r"\d{1,16}(\.\d{1,16})?", re.ASCII)

Known = Iterable[Reference | None]
"""What a model may be told from."""


def rounded(vector: Tensor, reference: Reference | None) -> tuple[dict[str, Any], list[Tensor]]:
    """What the head says of a model, and its tensors."""
    way = None if reference is None else reference.to(vector)
    if reference is None or way is None:
        return {}, [vector]
    return {"from": reference.label, "exponent": way.exponent}, [way.differences, way.rest]


def exact(vector: Tensor, reference: Reference | None) -> tuple[dict[str, Any], list[Tensor]]:
    """The same for a model that was rounded before. Where it would arrive as another one, it goes whole."""
    fields, tensors = rounded(vector, reference)
    if reference is None or not fields:
        return {}, [vector]
    arrives = reference.plus(Displacement(fields["exponent"], *tensors))
    same = torch.equal(arrives.view(torch.int32), vector.view(torch.int32))  # to the bit: -0.0 is not 0.0
    return (fields, tensors) if same else ({}, [vector])


class Announced:
    """The model that a head announces. Its two keys, if it has them, are taken out of the head."""

    def __init__(self, fields: dict[str, Any], size: int, known: Known) -> None:
        self._size, self.reference, self._exponent = size, None, 0
        if "exponent" not in fields:
            return
        label, exponent = fields.pop("from", None), fields.pop("exponent")
        self.reference = next((one for one in known if one is not None and one.label == label), None)
        if self.reference is None:
            raise Malformed("the model is told from one that is not known here")
        if isinstance(exponent, bool) or not isinstance(exponent, int) or exponent not in EXPONENTS:
            raise Malformed("the exponent is none")
        self._exponent = exponent

    @property
    def shapes(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Of its tensors, which come first in the frame."""
        if self.reference is None:
            return [(torch.float32, (self._size,))]
        code, trainable = self.reference.code, self.reference.layout.trainable
        return [(code.dtype, (code.length(trainable),)), (torch.float32, (self._size - trainable,))]

    def vector(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.reference is None:
            return tensors[0]
        try:
            return self.reference.plus(Displacement(self._exponent, *tensors))
        except ValueError as error:
            raise Malformed(str(error)) from None
