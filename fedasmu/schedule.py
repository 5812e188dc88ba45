"""When devices start and when the server aggregates: all that makes a method synchronous or asynchronous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    @property
    def limit(self) -> int:
        """The most devices in flight."""

    @property
    def timed(self) -> bool:
        """Whether devices start on a timer, or as soon as the schedule has a vacancy."""

    def vacancies(self, busy: int, waiting: int) -> int:
        """How many devices may start now, with `busy` in flight and `waiting` uploads not yet aggregated."""

    def ready(self, waiting: int, busy: int) -> bool:
        """Whether to aggregate the waiting uploads now."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """A barrier: a cohort starts together, and the server waits for everyone in it who is still alive."""

    cohort: int
    timed = False

    @property
    def limit(self) -> int:
        return self.cohort

    def vacancies(self, busy: int, waiting: int) -> int:
        return self.cohort if busy == 0 and waiting == 0 else 0

    def ready(self, waiting: int, busy: int) -> bool:
        return waiting > 0 and busy == 0


@dataclass(frozen=True, slots=True)
class Periodic:
    """A timer starts up to `count` idle devices, at most `limit` in flight; every `buffer` uploads are aggregated."""

    count: int
    limit: int
    buffer: int = 1
    timed = True

    def vacancies(self, busy: int, waiting: int) -> int:
        return max(0, min(self.count, self.limit - busy))

    def ready(self, waiting: int, busy: int) -> bool:
        return waiting >= self.buffer
