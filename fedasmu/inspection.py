"""What an upload must be before a method sees it: a model of the right kind, and a note of the method's own type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedasmu.note import of_table
from fedasmu.protocol import Report, Upload

LARGEST = 1e15  # of an upload's numbers: squares of differences, summed over a whole model, are still finite


def inspected(upload: Upload, current: Tensor, note_type: type[Any] | None) -> Upload | None:
    """With its note as the method's own type. None: there is no model in it, or another note."""
    try:
        return with_note(upload, note_type) if is_sound(upload.report, current) else None
    except ValueError:
        return None


def with_note(upload: Upload, note_type: type[Any] | None) -> Upload:
    return upload if note_type is None else replace(upload, note=of_table(note_type, upload.report.note))


def is_sound(report: Report, current: Tensor) -> bool:
    """Whether the report has a model in it: of the right kind and length, finite and not absurdly large."""
    vector = report.vector
    if not isinstance(report.note, Mapping):
        return False
    if not isinstance(vector, Tensor) or vector.layout != torch.strided or vector.device.type != "cpu":
        return False
    if vector.shape != current.shape or vector.dtype != current.dtype:
        return False
    if not isinstance(report.loss, float | int) or not abs(report.loss) <= sys.float_info.max:
        return False
    if not len(vector):
        return True
    smallest, largest = torch.aminmax(vector)  # one quick pass; a NaN anywhere makes both NaN
    return bool(smallest >= -LARGEST and largest <= LARGEST)
