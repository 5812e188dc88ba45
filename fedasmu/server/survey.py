"""What the devices measured: each the model that it was sent, on examples of its own that nobody trains on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedasmu.protocol import Evaluated

LARGEST = 1000.0  # that the loss of one device may count: a mean is not for one of them to decide


def bounded(loss: float) -> float:
    """A loss as it counts: one that is not a number is as bad as a loss can be."""
    return LARGEST if math.isnan(loss) else max(-LARGEST, min(loss, LARGEST))


def worst_tenth(accuracies: list[float]) -> float:
    """The mean over the tenth of the devices, and at least one, for which the model is worst."""
    worst = sorted(accuracies)[: max(1, len(accuracies) // 10)]
    return math.fsum(worst) / len(worst)


@dataclass(slots=True)
class Heard:
    """Since the last line of the metrics."""

    reports: int = 0
    examples: int = 0
    loss: float = 0.0  # summed over the examples
    correct: float = 0.0


class Survey:
    def __init__(self) -> None:
        self.heard = Heard()
        self._latest: dict[int, float] = {}  # of each device the accuracy that it told last

    def add(self, device: int, measured: Evaluated) -> None:
        heard, count = self.heard, measured.examples
        self.heard = Heard(
            heard.reports + 1,
            heard.examples + count,
            heard.loss + count * bounded(measured.loss),
            heard.correct + count * measured.score,
        )
        self._latest[device] = measured.score

    def take(self) -> Evaluated | None:
        """The mean over all examples that were measured on since this was last asked; None if there were none."""
        heard, self.heard = self.heard, Heard()
        if not heard.examples:
            return None
        return Evaluated(heard.loss / heard.examples, heard.correct / heard.examples, heard.examples)

    def by_device(self) -> dict[str, float | None]:
        """Of the accuracies that the devices told last: the mean, and that of the worst tenth."""
        known = list(self._latest.values())
        if not known:
            return {"device_accuracy": None, "worst_tenth": None}
        return {"device_accuracy": math.fsum(known) / len(known), "worst_tenth": worst_tenth(known)}

    def state(self) -> dict[str, Any]:
        return {"heard": asdict(self.heard), "latest": [[device, last] for device, last in self._latest.items()]}

    def restore(self, state: dict[str, Any]) -> None:
        self.heard, self._latest = Heard(**state["heard"]), dict(state["latest"])
