"""A small federation with a known answer: two classes of points on ten unequal devices."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, obtain
from torch import nn

from fedasmu import Experiment, FederatedData, Result
from fedasmu.conformance import blobs, outputs, softmax

__all__ = ["Run", "blobs", "browser", "outputs", "run", "settings", "softmax"]

os.environ.setdefault("NO_COLOR", "1")  # plain text, whatever terminal the tests are started from
torch.set_num_threads(1)


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


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(workers=2, stop={"uploads": 9}) -> the result of a run on the blobs, each in a directory of its own."""
    count = 0

    def start(
        workers: Any = "inline",
        model: Callable[[], nn.Module] = softmax,
        data: FederatedData | None = None,
        **changes: Any,
    ) -> Result:
        nonlocal count
        count += 1
        experiment = Experiment(settings(**changes), model=model, data=data or blobs())
        return experiment.run(tmp_path / f"run-{count}", workers=workers)

    return start


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable, reason = obtain(Path(tempfile.gettempdir()) / "fedasmu-tests-chromium.lock")
    if executable is None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = Browser(executable, Path(profile))
        try:
            yield started
        finally:
            started.close()
