"""What a device writes into its upload's note, checked before the server uses it: a device is not believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOST_REWARD = 1e3  # a difference of two losses beyond this teaches nothing worth knowing


def merge_fits(note: Mapping[str, Any], steps: int, units: int, low: float, high: float) -> bool:
    """Whether what a note says about a merge can be true: its weight, the moment, the slot, the reward."""
    reward = note.get("reward", 0.0)
    return (
        _within(note.get("beta", 0.0), low, high)
        and ("beta" not in note or _whole(note.get("merged_after"), steps))
        and ("slot" not in note or _whole(note["slot"], units))
        and (_within(reward, -MOST_REWARD, MOST_REWARD) or (isinstance(reward, float) and not math.isfinite(reward)))
    )


def gradient_fits(sent: Any, size: int) -> bool:
    """Whether it is a gradient, of as many elements, and finite."""
    return (
        isinstance(sent, Tensor)
        and sent.dtype == torch.float32
        and sent.layout == torch.strided
        and sent.device.type == "cpu"
        and sent.shape == (size,)
        and bool(torch.isfinite(sent).all())
    )


def _within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < limit
