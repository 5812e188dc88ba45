"""What a run minimises and what it measures, by name. Importing this does not import torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedasmu.errors import did_you_mean

IN_PYTHON = "given-in-python"  # the name of a model, data, loss or metric that no recipe can name
CROSS_ENTROPY, ACCURACY = "cross-entropy", "accuracy"
HOME = "fedasmu.engines.goal"
LOSSES = {CROSS_ENTROPY: f"{HOME}:cross_entropy", "mse": f"{HOME}:mse", "mae": f"{HOME}:mae"}
METRICS = {ACCURACY: f"{HOME}:accuracy", "rmse": f"{HOME}:rmse", "mae": f"{HOME}:mae", "r2": f"{HOME}:r2"}
SMALLER = {"rmse", "mae"}  # is better, in these


@dataclass(frozen=True, slots=True)
class Metric:
    """The number that models are judged by: what it is called, and whether a larger one is better."""

    name: str = ACCURACY
    larger: bool = True

    @classmethod
    def of(cls, name: str, larger: bool | None = None) -> Metric:
        """By its name in a recipe. A user's own is better when it is larger, unless said otherwise."""
        return cls(short(name), name not in SMALLER if larger is None else larger)

    @property
    def is_share(self) -> bool:
        """A part of 1, which people read in percent."""
        return self.name == ACCURACY

    def shown(self, value: float, places: int = 4) -> str:
        """As tables show it."""
        return format(value, self.form(value, places))

    def form(self, value: float, places: int = 4) -> str:
        """With so many places, unless a small error would be a row of zeros."""
        rounded = self.is_share or value == 0 or abs(value) >= 10 ** (2 - places)
        return f".{places}f" if rounded else f".{places - 1}g"

    def better(self, value: float) -> float:
        """To sort by: the better, the larger."""
        return value if self.larger else -value

    def best(self, values: NDArray[np.float64]) -> float:
        return float(values.max() if self.larger else values.min())

    def reached(self, values: NDArray[np.float64], target: float) -> NDArray[np.intp]:
        """The places of the values that are as good as the target."""
        return np.flatnonzero(values >= target if self.larger else values <= target)


def short(name: str) -> str:
    """What a loss or metric is called: of "package.module:function" the function."""
    return re.split("[:/]", name)[-1]


def known(name: str, names: dict[str, str]) -> str:
    """The name, if it is one of these, code of a user's own, or was given in Python."""
    if name not in names and ":" not in name and not name.startswith(f"{IN_PYTHON}/"):
        also = f"(known: {', '.join(names)}; or your own as package.module:function)"
        raise ValueError(f"{name!r} is not known{did_you_mean(name, names)} {also}")
    if name not in names and not short(name).isidentifier():
        raise ValueError("write your own as package.module:function")
    return name
