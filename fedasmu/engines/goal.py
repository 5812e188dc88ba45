"""Losses to minimise and metrics to measure: functions of (outputs, targets), a network's and the data's.

A loss gives the mean over the examples, as a tensor with a gradient; a metric one number for all test examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedasmu.errors import UserError
from fedasmu.imports import blame, load
from fedasmu.measure import IN_PYTHON, LOSSES, METRICS

Loss = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor], "float | Tensor"]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error."""
    return functional.mse_loss(outputs, targets)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error."""
    return functional.l1_loss(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose largest output is their class."""
    return float((outputs.argmax(1) == targets).double().mean())


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error."""
    return float(mse(outputs.double(), targets.double()).sqrt())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The coefficient of determination: 1 is perfect, 0 is what the targets' mean would get."""
    outputs, targets = outputs.double(), targets.double()
    around = (targets - targets.mean(0)).square().sum()
    return float(1 - (targets - outputs).square().sum() / around)


@dataclass(frozen=True)
class Goal:
    """What training minimises, and what an evaluation measures beside it."""

    loss: Loss = cross_entropy
    metric: Score = accuracy
    calibrated: bool = False  # for a device's own mixture of classes, whatever a method asks for

    @property
    def classifies(self) -> bool:
        """By the cross-entropy, the only loss that every engine and every method knows."""
        return self.loss is cross_entropy

    @property
    def is_plain(self) -> bool:
        """Cross-entropy and accuracy, which an engine measures by itself."""
        return self.classifies and self.metric is accuracy


def goal_of(
    loss: str, metric: str, given_loss: Loss | None = None, given_metric: Score | None = None, calibrated: bool = False
) -> Goal:
    """Of a recipe's names, and of what was given in Python instead."""
    return Goal(
        _found("local.loss", loss, LOSSES, given_loss, "loss"),
        _found("evaluate.metric", metric, METRICS, given_metric, "metric"),
        calibrated,
    )


def check_method(goal: Goal, loss: str, method: str, own_objective: bool) -> None:
    """A method whose devices minimise an objective of its own has the cross-entropy in it, as it is."""
    if own_objective and not goal.classifies:
        raise UserError(f"local.loss = {loss!r}: {method} has a loss of its own")
    if goal.calibrated and (own_objective or not goal.classifies):
        other = f"{method} has a loss of its own" if own_objective else f"not {loss}"
        raise UserError(f"local.calibrate = true: it is the cross-entropy that can be calibrated; {other}")


def _found(key: str, name: str, names: dict[str, str], given: Any, word: str) -> Any:
    if name.startswith(IN_PYTHON):
        if given is None:
            raise UserError(f"this run's {word} was given in Python: resume it with Experiment.of_run(dir, {word}=...)")
        return given
    try:
        return load(names.get(name, name))
    except ValueError as error:
        raise UserError(f"{key} = {name!r}: {error}") from None


def check(goal: Goal, outputs: Tensor, targets: Tensor, loss: str, metric: str) -> None:
    """On some outputs that have a gradient: a loss or metric that cannot work is refused before anything starts."""
    if targets.is_floating_point():
        _check_numbers(goal, outputs, targets)
    elif loss in LOSSES and not goal.classifies:
        raise UserError(
            f"local.loss = {loss!r}: the data's targets are classes, not numbers: leave it out, or give the targets as "
            "numbers with a point (files: regression=True)"
        )
    elif metric in METRICS and goal.metric is not accuracy:
        raise UserError(
            f"evaluate.metric = {metric!r}: the data's targets are classes, not numbers: leave it out, or give the "
            "targets as numbers with a point (files: regression=True)"
        )
    value = _called(f"local.loss = {loss!r}", goal.loss, outputs, targets)
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        raise UserError(
            f"local.loss = {loss!r}: must give one number, as a tensor with a gradient, not {_shown(value)}"
        )
    with torch.no_grad():
        score = _called(f"evaluate.metric = {metric!r}", goal.metric, outputs.detach(), targets)
    try:
        float(score)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"evaluate.metric = {metric!r}: must give one number, not {_shown(score)}") from None


def _check_numbers(goal: Goal, outputs: Tensor, targets: Tensor) -> None:
    if goal.classifies:
        raise UserError("the data's targets are numbers, not classes: choose a loss for these, as local.loss = 'mse'")
    if goal.metric is accuracy:
        raise UserError("the data's targets are numbers, not classes: choose a metric, as evaluate.metric = 'rmse'")
    if outputs.shape != targets.shape:
        gives, wants = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
        raise UserError(f"the model gives {gives} outputs, but the data have {wants} targets for each example")


def _called(what: str, function: Callable[[Tensor, Tensor], Any], outputs: Tensor, targets: Tensor) -> Any:
    try:
        return function(outputs, targets)
    except Exception as error:
        raise UserError(f"{what} failed: {blame(error)}") from error


def _shown(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
