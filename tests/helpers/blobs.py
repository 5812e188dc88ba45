"""A small federation with a known answer: two classes of points on ten unequal devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedasmu import Result
from fedasmu.conformance import blobs, outputs, softmax

__all__ = ["Run", "blobs", "network", "of_method", "outputs", "settings", "softmax"]

Run = Callable[..., Result]  # the fixture `run` of conftest.py


def network() -> nn.Module:
    """With hidden units to drop, features to contrast, and statistics that are no gradient's business."""
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def of_method(name: str) -> dict[str, Any]:
    """For `settings`, with `network`: no device has a last batch of one example, which BatchNorm cannot take."""
    return {"algorithm": {"name": name}, "local": {"batch": 15}}


def settings(**changes: Any) -> dict[str, Any]:
    """Sixty uploads from ten devices; sections given here are merged into the defaults."""
    table: dict[str, Any] = {
        "name": "blobs",
        "fleet": {"devices": 10},
        "pacing": {"max_in_flight": 5, "period": 1.0},
        "local": {"epochs": 2, "batch": 8, "lr": 0.1, "decay": 1.0},
        "algorithm": {"name": "fedasync"},
        "evaluate": {"every": 5, "targets": [0.9]},
        "stop": {"uploads": 60},
    }
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) and name != "algorithm" else value
    return table
