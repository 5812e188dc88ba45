"""Whether a run has learned its training data by heart: the test loss rises while the devices' own loss falls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedasmu.run.result import Result

ENOUGH = 20  # evaluations, to tell a loss that rises from one that swings
RISEN = 1.1  # times the least loss: beyond that it has risen


@dataclass(frozen=True)
class Overfit:
    uploads: int  # when the test loss was least
    least: float
    last: float


def overfit(result: Result) -> Overfit | None:
    """What has become of the test loss, if it has clearly risen. Losses are means of a tenth of the evaluations."""
    trained = result.curve["version"] > 0
    count = int(trained.sum())
    if count < ENOUGH:
        return None
    window = np.full(count // 10, 1 / (count // 10))
    columns = (result.curve[name][trained] for name in ("loss", "train_loss", "uploads"))
    test, train, uploads = (np.convolve(column, window, "valid") for column in columns)
    least = int(np.argmin(test))
    if test[-1] <= RISEN * test[least] or not train[-1] < train[least]:
        return None
    return Overfit(round(uploads[least]), float(test[least]), float(test[-1]))
