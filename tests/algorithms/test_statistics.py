"""BatchNorm's running statistics under every method: mixed, never stepped, so that no variance becomes negative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedasmu import Experiment
from fedasmu.algorithms import NAMES
from fedasmu.algorithms.steps import mixed_statistics
from fedasmu.events import Event, Measured
from fedasmu.server.desk import Desk
from fedasmu.vector import Layout
from helpers.blobs import blobs, settings
from helpers.uploads import close, model, upload

METHODS = [{"name": name} for name in NAMES] + [{"name": "fedfa", "form": "delta"}]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_variances_stay_positive_and_evaluations_finite(method: dict[str, Any], tmp_path: Path) -> None:
    """Devices whose inputs differ in scale, and forty of them at work at once: a stepped variance overshoots here."""
    data = blobs(devices=40, count=800)
    for device, shard in enumerate(data.shards):
        data.train.inputs[shard] *= 10.0 if device % 2 else 0.1
    (variance,) = [entry for entry in Layout.of(network()).buffers if entry.name.endswith("running_var")]
    lowest = []

    def watch(desk: Desk, line: Event | Measured) -> None:
        lowest.append(float(variance.view(desk.server.model.vector).min()))

    table = settings(
        algorithm=method,
        fleet={"devices": 40},
        local={"batch": 5, "epochs": 6},
        pacing={"max_in_flight": 40, "count": 20, "period": 0.1},
        stop={"uploads": 100},
    )
    result = Experiment(table, model=network, data=data).run(tmp_path / "run", workers="inline", observe=watch)
    assert min(lowest) > 0
    assert torch.isfinite(torch.tensor(result.curve["loss"])).all()


def test_statistics_move_by_the_weights_and_at_most_all_the_way() -> None:
    base = model(0, 0, 0, 0, 0)
    uploads = upload(base, 9, 9, 2, 4), upload(base, 9, 9, 8, 0)
    tail = torch.tensor([1.0, 1.0])
    assert close(mixed_statistics(tail, uploads, [0.2, 0.1], trainable=2), 0.7 + 0.2 * 2 + 0.1 * 8, 0.7 + 0.2 * 4)
    assert close(mixed_statistics(tail, uploads, [2.0, 1.0], trainable=2), 4, 8 / 3)  # the uploads' mean, no further
    assert close(mixed_statistics(tail, uploads, [0.0, 0.0], trainable=2), 1, 1)
