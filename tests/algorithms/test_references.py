"""A recorded sequence of uploads, replayed through each published rule as it is written here, in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedasmu.algorithms import Algorithm, Pace, settings
from fedasmu.protocol import Model, Report
from fedasmu.server.core import Server
from helpers.uploads import federation

Vector = NDArray[np.float64]
EXAMPLES = (10, 30, 20, 40)
INITIAL = (1.0, -2.0)


@dataclass
class Recorded:
    device: int
    version: int  # of the model that it was sent
    vector: Vector


def replay(algorithm: Algorithm, directory: Path) -> tuple[list[Vector], list[Recorded]]:
    """The models that the server went through, and the uploads it was given: 20, three in flight, the second to start
    is the first to finish."""
    server = Server(
        Model(0, torch.tensor(INITIAL)),
        algorithm.schedule(Pace(3, 3)),
        algorithm.aggregator(federation(directory, EXAMPLES)),
        len(EXAMPLES),
        5,
        lambda uploads: 0.1,
    )
    generator = torch.Generator().manual_seed(3)
    models, recorded = [_numbers(server.model)], []
    for _ in range(20):
        server.tick()
        entry = list(server.ledger.values())[min(1, len(server.ledger) - 1)]
        base = entry.task.model
        vector = 0.8 * base.vector + torch.randn(2, generator=generator)
        recorded.append(Recorded(entry.task.device, base.version, vector.numpy().astype(float)))
        decision = server.receive(entry.task.id, entry.task.device, Report(vector, EXAMPLES[entry.task.device]))
        if decision.aggregation is not None:
            models.append(_numbers(server.model))
    return models, recorded


def _numbers(model: Model) -> Vector:
    return model.vector.numpy().astype(float)


Rule = Callable[[list[Vector], list[Recorded]], list[Vector]]  # all models, from the first and the uploads


def fedbuff(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    """FLSim: the buffer is a weighted sum, the optimiser's learning rate takes the 1/K."""
    velocity, k = np.zeros(2), 4
    for start in range(0, len(uploads), k):
        gradient = np.zeros(2)
        for upload in uploads[start : start + k]:
            staleness = len(models) - 1 - upload.version
            gradient += (models[upload.version] - upload.vector) / np.sqrt(1 + staleness)
        velocity = 0.9 * velocity + gradient
        models.append(models[-1] - 0.7 / k * velocity)
    return models


def feddelay(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    for upload in uploads:
        delay = len(models) - 1 - upload.version
        step = 0.4 if delay <= 1 else 0.4 / delay
        models.append(models[-1] + step * (upload.vector - models[upload.version]))
    return models


def port(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    for start in range(0, len(uploads), 4):
        weights, deltas = [], []
        for upload in uploads[start : start + 4]:
            base, delay = models[upload.version], len(models) - 1 - upload.version
            delta, moved = upload.vector - base, models[-1] - base
            cosine = 1.0 if delay <= 1 else delta @ moved / np.linalg.norm(delta) / np.linalg.norm(moved)
            weights.append(EXAMPLES[upload.device] / 100 * (3.0 * 10 / (delay + 10) + 1.0 * (cosine + 1) / 2))
            deltas.append(delta)
        models.append(models[-1] + np.average(deltas, axis=0, weights=weights))
    return models


def asofed(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    """The mean of the seen devices' last models, by examples: not computed as differences, as the method does it."""
    last: dict[int, Vector] = {}
    for upload in uploads:
        last[upload.device] = upload.vector
        models.append(np.average(list(last.values()), axis=0, weights=[EXAMPLES[device] for device in last]))
    return models


def asyncpart(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    counts = np.zeros(4)
    for upload in uploads:
        share = (counts[upload.device] + 1) / (counts.sum() + 4)
        counts[upload.device] += 1
        delay = len(models) - 1 - upload.version
        beta = min(0.9, 0.5 * (EXAMPLES[upload.device] / 100 / share) / np.sqrt(delay + 1))
        models.append((1 - beta) * models[-1] + beta * upload.vector)
    return models


def ca2fl(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    cache = np.zeros((4, 2))
    for start in range(0, len(uploads), 4):
        batch = uploads[start : start + 4]
        deltas = [upload.vector - models[upload.version] for upload in batch]
        calibrated = [delta - cache[upload.device] for delta, upload in zip(deltas, batch, strict=True)]
        models.append(models[-1] + 0.5 * (cache.mean(0) + np.mean(calibrated, axis=0)))
        for upload, delta in zip(batch, deltas, strict=True):
            cache[upload.device] = delta
    return models


def fadas(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    """The authors' code: AMSGrad with Adam's bias corrections, and a step divided by the largest delay."""
    first, second, peak = np.zeros(2), np.zeros(2), np.zeros(2)
    for step, start in enumerate(range(0, len(uploads), 4), 1):
        batch = uploads[start : start + 4]
        delta = np.mean([upload.vector - models[upload.version] for upload in batch], axis=0)
        first, second = 0.9 * first + 0.1 * delta, 0.99 * second + 0.01 * delta**2
        peak = np.maximum(peak, second)
        delay = max(len(models) - 1 - upload.version for upload in batch)
        rate = 0.3 if delay <= 1 else 0.3 / delay
        denominator = np.sqrt(peak) / np.sqrt(1 - 0.99**step) + 1e-8
        models.append(models[-1] + rate * first / (1 - 0.9**step) / denominator)
    return models


def fedfa(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    queue = [models[0]] * 3
    for upload in uploads:
        oldest, queue = queue[0], [*queue[1:], upload.vector]
        models.append(models[-1] + (upload.vector - oldest) / 3)
    return models


def area(models: list[Vector], uploads: list[Recorded]) -> list[Vector]:
    memory: dict[int, Vector] = {}
    for upload in uploads:
        residual = upload.vector - memory.get(upload.device, models[0])
        memory[upload.device] = upload.vector
        models.append(models[-1] + residual / 4)
    return models


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        (fedbuff, {"name": "fedbuff", "buffer": 4, "server_lr": 0.7, "momentum": 0.9}),
        (feddelay, {"name": "feddelay", "server_lr": 0.4, "tau_c": 1}),
        (port, {"name": "port", "minimum": 4}),
        (asofed, {"name": "asofed"}),
        (asyncpart, {"name": "asyncpart"}),
        (ca2fl, {"name": "ca2fl", "buffer": 4, "server_lr": 0.5}),
        (fadas, {"name": "fadas", "buffer": 4, "server_lr": 0.3, "bias_correction": True}),
        (fedfa, {"name": "fedfa", "window": 3}),
        (area, {"name": "area"}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_published_rule_gives_the_same_models(rule: Rule, table: dict[str, object], tmp_path: Path) -> None:
    models, uploads = replay(settings(table), tmp_path)
    expected = rule(models[:1], uploads)
    assert len(models) == len(expected) >= 5
    assert len({upload.version for upload in uploads}) > 3
    np.testing.assert_allclose(np.array(models), np.array(expected), atol=1e-4)
