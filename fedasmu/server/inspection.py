"""What an upload must be before a method sees it: a model of the right kind, and a note of the method's own type.

And what a method must give, before a device is sent it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator
from fedasmu.encoding.note import of_table
from fedasmu.errors import DeviceError
from fedasmu.protocol import Report

LARGEST = 1e15  # of an upload's numbers: squares of differences, summed over a whole model, are still finite


def noted(report: Report, current: Tensor, note_type: type[Any] | None) -> Any:
    """The report's note as the method's own type. Raises ValueError: there is no model in it, or another note."""
    if not is_sound(report, current):
        raise ValueError("not a model")
    return note_of(report, note_type)


def note_of(report: Report, note_type: type[Any] | None) -> Any:
    return None if note_type is None else of_table(note_type, report.note)


def is_sound(report: Report, current: Tensor) -> bool:
    """Whether the report has a model in it: of the right kind and length, finite and not absurdly large."""
    vector = report.vector
    if not isinstance(report.note, Mapping):
        return False
    if not isinstance(vector, Tensor) or vector.layout != torch.strided or not vector.is_cpu:
        return False
    if vector.shape != current.shape or vector.dtype != current.dtype:
        return False
    if not isinstance(report.loss, (float, int)) or not abs(report.loss) <= sys.float_info.max:
        return False
    if not vector.numel():
        return True
    smallest, largest = torch.aminmax(vector)  # one quick pass; a NaN anywhere makes both NaN
    return smallest.item() >= -LARGEST and largest.item() <= LARGEST


def next_vector(result: object, current: Tensor, method: type[Aggregator]) -> Tensor:
    """Of what a method made of its uploads. Raises DeviceError where that is no model like the current one.

    This is looked at with each upload, so words are made only where they are needed.
    """
    vector: object = result.vector if isinstance(result, Aggregate) else None
    if isinstance(vector, Tensor) and vector.dtype == current.dtype and vector.shape == current.shape:
        return vector
    if not isinstance(result, Aggregate):
        given = f"a {type(result).__name__}, not an Aggregate"
    elif not isinstance(vector, Tensor):
        given = f"a vector that is a {type(vector).__name__}, not a tensor"
    else:
        theirs, ours = (f"{one.dtype} {tuple(one.shape)}" for one in (vector, current))
        given = f"a vector of {theirs}; the model's is of {ours}"
    raise DeviceError(None, f"{method.__qualname__}.aggregate gave {given}")
