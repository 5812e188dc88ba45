"""Steps along the devices' displacements. What is trained is stepped; BatchNorm's statistics are only ever mixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedasmu.algorithms.fedavg import weighted_mean
from fedasmu.protocol import Model, Upload


def displacement(uploads: Sequence[Upload], weights: Sequence[float]) -> Tensor:
    """sum_i c_i delta_i, where delta_i = w_i - w_o is how far device i moved the model it was sent"""
    total = torch.zeros_like(uploads[0].report.vector)
    for upload, weight in zip(uploads, weights, strict=True):
        total.add_(upload.report.vector - upload.base.vector, alpha=weight)
    return total


def stepped(
    current: Model,
    update: Tensor,
    uploads: Sequence[Upload],
    weights: Sequence[float],
    trainable: int,
    rate: float = 1.0,
) -> Tensor:
    """w + rate * update for the trainable part; the rest of the vector is mixed with that of the uploads."""
    vector = torch.add(current.vector, update, alpha=rate)
    vector[trainable:] = mixed_statistics(current.vector[trainable:], uploads, weights, trainable)
    return vector


def mixed_statistics(tail: Tensor, uploads: Sequence[Upload], weights: Sequence[float], trainable: int) -> Tensor:
    """(1 - c) tail + c (the uploads' weighted mean tail), c = min(1, sum of the weights).

    A stale displacement is a delayed feedback: stepped along it, a running variance overshoots and becomes negative. A
    mixture of variances is one again.
    """
    share = min(1.0, sum(weights))
    if share == 0:
        return tail
    return torch.lerp(tail, weighted_mean([upload.report.vector[trainable:] for upload in uploads], weights), share)
