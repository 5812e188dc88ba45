"""The time of a run: the seconds that it has been served."""

from __future__ import annotations

import time
from collections.abc import Callable

STALL = 2.0  # seconds between two looks at the clock: a server that runs looks more often


class Uptime:
    """Goes on where the run was. While the process was stopped or stuck nobody was heard, so nobody is late by that."""

    def __init__(self, start: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._now, self._looked = monotonic, start, monotonic()

    def __call__(self) -> float:
        looked = self._monotonic()
        passed = looked - self._looked
        self._looked = looked
        self._now += passed if passed < STALL else 0.0
        return self._now
