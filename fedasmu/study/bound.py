"""The convergence bound of the paper's appendix, for a convex problem on which all its constants are known.

Softmax regression: F(w) is the mean cross-entropy of a linear classifier. `printed` is the last line of the proof that
still has all its constants; `summed` is what its own sum over rounds gives. docs/results/theorem.md has the story.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot


@dataclass(frozen=True)
class Constants:
    """Those of the theorem, as small as what was seen allows."""

    smoothness: float  # L
    gradient: float  # G^2: the mean square of a stochastic gradient, on any device
    variance: float  # V^2: its mean square distance from the gradient of F
    weight: float  # alpha_min
    steps: int  # local steps of SGD, the same on all devices: L_min = L_max
    fall: float  # F(w_0) - F(w_T)


def printed(known: Constants, rounds: int, rate: float, staleness: int) -> float:
    """2 fall / (alpha eta T n) + ([(1 + tau^2 n) L eta / 2 + 3 tau + L tau^2 eta n + 2 eta + L eta] G^2 + V^2) / T"""
    n, smooth, tau = known.steps, known.smoothness, staleness
    errors = (1 + tau**2 * n) / 2 * smooth * rate + 3 * tau + smooth * tau**2 * rate * n + 2 * rate + smooth * rate
    return _fallen(known, rounds, rate) + (errors * known.gradient + known.variance) / rounds


def summed(known: Constants, rounds: int, rate: float, staleness: int) -> float:
    """The same, with what each of T rounds adds divided by T n once and not twice."""
    n, smooth, tau = known.steps, known.smoothness, staleness
    errors = (1 + tau**2 * n) / 2 * smooth * rate**2 + 3 * tau + smooth * tau**2 * rate * n + 2 * rate + smooth * rate
    return _fallen(known, rounds, rate) + errors * known.gradient + known.variance


def _fallen(known: Constants, rounds: int, rate: float) -> float:
    return 2 * known.fall / (known.weight * rate * rounds * known.steps)


class SoftmaxRegression:
    """Loss and gradient of F at a model's vector: the weights of all classes, then their biases."""

    def __init__(self, inputs: Tensor, targets: Tensor, classes: int) -> None:
        flat = inputs.flatten(1)
        self.inputs = torch.cat([flat, torch.ones(len(flat), 1)], dim=1)
        self.targets, self.wanted = targets, one_hot(targets, classes).to(flat.dtype)
        self.classes = classes

    def _matrix(self, vector: Tensor) -> Tensor:
        weights = vector[: -self.classes].view(self.classes, -1)
        return torch.cat([weights, vector[-self.classes :, None]], dim=1)

    def loss(self, vector: Tensor) -> float:
        return float(cross_entropy(self.inputs @ self._matrix(vector).T, self.targets))

    def gradient(self, vector: Tensor, examples: Tensor | slice = slice(None)) -> Tensor:
        inputs = self.inputs[examples]
        errors = (inputs @ self._matrix(vector).T).softmax(1) - self.wanted[examples]
        matrix = errors.T @ inputs / len(inputs)
        return torch.cat([matrix[:, :-1].flatten(), matrix[:, -1]])

    @property
    def smoothness(self) -> float:
        """L: half of the largest eigenvalue of X'X / n, as the Hessian of a softmax is at most a half."""
        spread = self.inputs.double().T @ self.inputs.double() / len(self.inputs)
        return float(torch.linalg.eigvalsh(spread)[-1]) / 2


def rate_of(rounds: int) -> float:
    """The theorem's step size"""
    return 1 / math.sqrt(rounds)
