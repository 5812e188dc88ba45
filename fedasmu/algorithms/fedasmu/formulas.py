"""The numbered formulas of FedASMU's weights, and their derivatives.

Names and numbers follow the paper: alpha (2) weighs an upload on the server (xi is its argument, with the device's
control parameters lambda, sigma and iota, which (3) moves); beta (8) weighs a fresh global model on a device (phi is
its argument, with gamma and upsilon, which (9) moves). The mixtures (1) and (7) are in server.py and device.py, the
learned slot, (5) and (6), in slots.py; (4) is SGD. docs/algorithms/fedasmu.md has for each its test and departures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedasmu.algorithms.fedasmu.notes import Merge
from fedasmu.protocol import Upload
from fedasmu.vector import blocks


def squash(mu: float, x: float) -> float:
    """alpha of (2) and beta of (8): mu x / (1 + mu x), which takes [0, inf) to [0, 1)"""
    return mu * x / (1.0 + mu * x)


def squash_slope(mu: float, x: float) -> float:
    """d squash / d x = mu / (1 + mu x)^2, the chain's outer part in (3) and (9)"""
    return mu / (1.0 + mu * x) ** 2


def round_term(version: int, printed: bool = False) -> float:
    """R_t of (2): sqrt(t + 1). The paper prints sqrt(t), which is 0 for the first version of all."""
    return math.sqrt(max(version, 1) if printed else version + 1)


@dataclass(frozen=True, slots=True)
class ServerControls:
    """What the server has learned about one device."""

    lam: float
    sigma: float
    iota: float


def xi(controls: ServerControls, rounds: float, staleness: float) -> float:
    """xi of (2): lambda / (R_t s^sigma) + iota"""
    return controls.lam / (rounds * math.pow(staleness, controls.sigma)) + controls.iota


def xi_gradient(
    controls: ServerControls, rounds: float, staleness: float, printed: bool = False
) -> tuple[float, float, float]:
    """d xi / d (lambda, sigma, iota), the chain's inner part in (3).

    The paper prints ln(sigma) without lambda in the second, where ln(staleness) with lambda is right.
    """
    decay = 1.0 / (rounds * math.pow(staleness, controls.sigma))
    if printed:
        return decay, -decay * math.log(max(controls.sigma, 1e-6)), 1.0
    return decay, -decay * controls.lam * math.log(staleness), 1.0


@dataclass(frozen=True, slots=True)
class DeviceControls:
    """What a device has learned about merging a fresh model."""

    gamma: float
    upsilon: float


def phi(controls: DeviceControls, fresh: int, origin: int) -> float:
    """phi of (8): gamma / sqrt(g) (1 - upsilon / sqrt(g - o + 1))"""
    return controls.gamma / math.sqrt(max(fresh, 1)) * (1.0 - controls.upsilon / math.sqrt(fresh - origin + 1))


def phi_gradient(controls: DeviceControls, fresh: int, origin: int) -> tuple[float, float]:
    """d phi / d (gamma, upsilon), the chain's inner part in (9)"""
    newer, gap = math.sqrt(max(fresh, 1)), math.sqrt(fresh - origin + 1)
    return (1.0 - controls.upsilon / gap) / newer, -controls.gamma / (newer * gap)


def interpolated_version(origin: int, fresh: int, merged_after: int, steps: int) -> float:
    """The version that a model merged after k of n steps stands for: (k o + (n - k) g) / n"""
    return (merged_after * origin + (steps - merged_after) * fresh) / steps


def own_displacement(upload: Upload, correction: bool = True) -> Tensor:
    """d = w^i - w_o - beta (w_g - w_o), what the device's own SGD added; the merge is subtracted."""
    beta, models = _merged(upload, correction)
    return _displacement(beta, *models)


def displaced_from(upload: Upload) -> Tensor:
    """w_o + beta (w_g - w_o), where the device's own displacement begins."""
    beta, (_, base, *fresh) = _merged(upload, True)
    if not fresh:
        return base
    return fresh[0] if beta == 1.0 else torch.lerp(base, fresh[0], beta)


def _displacement(beta: float, reached: Tensor, base: Tensor, fresh: Tensor | None = None) -> Tensor:
    moved = reached - base
    return moved if fresh is None else moved.sub_(fresh - base, alpha=beta)


def _merged(upload: Upload, correction: bool) -> tuple[float, list[Tensor]]:
    """The weight of the merge that is to be subtracted, and the models that this needs: with it, or without."""
    note: Merge = upload.note
    beta, models = float(note.beta or 0.0), [upload.report.vector, upload.base.vector]
    if correction and upload.fresh is not None and beta:
        models.append(upload.fresh.vector)
    return beta, models


def gradient_scale(path: float, printed: bool = False) -> float:
    """Of the gradient in (3), at the model that was sent: -d / (sum of step sizes). The paper prints no minus."""
    return (1.0 if printed else -1.0) / path


def projection(upload: Upload, previous: Tensor, path: float, correction: bool = True, printed: bool = False) -> float:
    """The gradient in (3), times the device's previous direction; block by block, so that no other vector is made."""
    beta, models = _merged(upload, correction)
    scale, total = gradient_scale(path, printed), 0.0
    for before, *cut in blocks(previous, *models):
        gradient = _displacement(beta, *cut).mul_(scale)
        total += torch.dot(gradient, before.to(torch.float32)).item()
    return total


def effective_staleness(upload: Upload, steps: int) -> float:
    """s, less what a merge after k of n steps has made up for; without a merge s itself"""
    note: Merge = upload.note
    if upload.fresh is None or not note.beta or note.merged_after is None:
        return upload.staleness
    stands_for = interpolated_version(upload.base.version, upload.fresh.version, note.merged_after, steps)
    return upload.staleness - (stands_for - upload.base.version)


@dataclass(frozen=True, slots=True)
class Guard:
    """Keeps a learned number where its formula makes sense: a bounded step, and a bounded value."""

    low: float
    high: float
    step: float = 0.1

    def moved(self, value: float, rate: float, gradient: float) -> float:
        """A step of (3) or (9): value - rate * gradient, unless the gradient is not finite"""
        if not math.isfinite(gradient):
            return value
        change = max(-self.step, min(self.step, rate * gradient))
        return max(self.low, min(self.high, value - change))


@lru_cache
def bounded(high: float) -> Guard:
    """Between 0 and this. There are few of these, and each is needed at every upload."""
    return Guard(0.0, high)


UNGUARDED = Guard(-math.inf, math.inf, math.inf)
HIGHEST_BETA = 0.95  # with guards, a merge leaves something of the local model
