"""The numbered formulas of FedASMU's weights, and their derivatives.

Names follow the paper: alpha weighs an upload on the server (xi is its argument, with the device's control parameters
lambda, sigma and iota); beta weighs a fresh global model on a device (phi is its argument, with gamma and upsilon).
Numbers such as (A4) are those of docs/algorithms/fedasmu.md, where each has its formula, its test and its departures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def squash(mu: float, x: float) -> float:
    """(A5), (A16): mu x / (1 + mu x), which takes [0, inf) to [0, 1)"""
    return mu * x / (1.0 + mu * x)


def squash_slope(mu: float, x: float) -> float:
    """(A10), (A18): d squash / d x = mu / (1 + mu x)^2"""
    return mu / (1.0 + mu * x) ** 2


def round_term(version: int, printed: bool = False) -> float:
    """R_t of (A4): sqrt(t + 1). The paper prints sqrt(t), which is 0 for the first version of all."""
    return math.sqrt(max(version, 1) if printed else version + 1)


@dataclass(frozen=True, slots=True)
class ServerControls:
    """What the server has learned about one device."""

    lam: float
    sigma: float
    iota: float


def xi(controls: ServerControls, rounds: float, staleness: float) -> float:
    """(A4): lambda / (R_t s^sigma) + iota"""
    return controls.lam / (rounds * math.pow(staleness, controls.sigma)) + controls.iota


def xi_gradient(
    controls: ServerControls, rounds: float, staleness: float, printed: bool = False
) -> tuple[float, float, float]:
    """d xi / d (lambda, sigma, iota), the chain's inner part in (A11) to (A13).

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
    """(A15): gamma / sqrt(g) (1 - upsilon / sqrt(g - o + 1))"""
    return controls.gamma / math.sqrt(max(fresh, 1)) * (1.0 - controls.upsilon / math.sqrt(fresh - origin + 1))


def phi_gradient(controls: DeviceControls, fresh: int, origin: int) -> tuple[float, float]:
    """d phi / d (gamma, upsilon), the chain's inner part in (A19) and (A20)"""
    newer, gap = math.sqrt(max(fresh, 1)), math.sqrt(fresh - origin + 1)
    return (1.0 - controls.upsilon / gap) / newer, -controls.gamma / (newer * gap)


def interpolated_version(origin: int, fresh: int, merged_after: int, steps: int) -> float:
    """The version that a model merged after k of n steps stands for: (k o + (n - k) g) / n"""
    return (merged_after * origin + (steps - merged_after) * fresh) / steps


@dataclass(frozen=True, slots=True)
class Guard:
    """Keeps a learned number where its formula makes sense: a bounded step, and a bounded value."""

    low: float
    high: float
    step: float = 0.1

    def moved(self, value: float, rate: float, gradient: float) -> float:
        """(A7), (A21): value - rate * gradient, unless the gradient is not finite"""
        if not math.isfinite(gradient):
            return value
        change = max(-self.step, min(self.step, rate * gradient))
        return max(self.low, min(self.high, value - change))


UNGUARDED = Guard(-math.inf, math.inf, math.inf)
