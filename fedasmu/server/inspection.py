"""What an upload must be before a method sees it: a model of the right kind, and a note of the method's own type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedasmu.encoding.note import of_table
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
