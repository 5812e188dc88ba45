"""Who may hold a task, and for how long. Time is an argument: seconds of this run, which never go back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from fedasmu.settings.deployment import NetworkSettings

KNOWN = 5  # durations, before a deadline is made of them
RECENT = 50
STRIKES = 3  # tasks refused or lost in a row, before a device rests
REST = 600.0  # seconds
LEAST = 30.0  # seconds, of a deadline that is made of durations


@dataclass(slots=True)
class Lease:
    task: int
    device: int
    began: float
    until: float
    deliveries: int = 0  # of models to the device, for this task
    reached: int = 0  # bytes of the last one that came, as far as is known


@dataclass(slots=True)
class Leases:
    """Every task in flight has one. What is not renewed in time is over."""

    settings: NetworkSettings
    rounds: bool  # whether a whole cohort is waited for
    _leases: dict[int, Lease] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _strikes: dict[int, int] = field(default_factory=dict)
    _resting: dict[int, float] = field(default_factory=dict)
    _soonest: float = math.inf  # no lease ends before

    def grant(self, task: int, device: int, now: float) -> None:
        """A task is handed out: until the first sign of life, that is an offer."""
        lease = self._leases[task] = Lease(task, device, now, now + self.settings.offer)
        self._soonest = min(self._soonest, self._end(lease))

    def renew(self, task: int, now: float, seconds: float = 0.0) -> None:
        """A sign of life. An upload under way may need more seconds than a lease has."""
        if (lease := self._leases.get(task)) is not None:
            lease.until = max(lease.until, now + max(self.settings.lease, seconds))

    def end(self, task: int, now: float, good: bool) -> None:
        """A task is over. A device whose tasks end badly again and again rests for a while."""
        lease = self._leases.pop(task, None)
        if lease is None:
            return
        if good:
            self._durations.append(now - lease.began)
            if self.rounds:
                self._soonest = now  # deadlines may be others now
            self._strikes.pop(lease.device, None)
            return
        self._strikes[lease.device] = self._strikes.get(lease.device, 0) + 1
        if self._strikes[lease.device] >= STRIKES:
            self._resting[lease.device] = now + REST
            del self._strikes[lease.device]

    def rests(self, device: int, now: float) -> float:
        """For how many seconds more this device gets no task."""
        left = self._resting.get(device, now) - now
        if left <= 0:
            self._resting.pop(device, None)
        return max(0.0, left)

    def awake(self, devices: Collection[int]) -> float:
        """When the first of these may get a task."""
        resting = self._resting
        return 0.0 if any(device not in resting for device in devices) else min(map(resting.__getitem__, devices))

    def find(self, task: int) -> Lease | None:
        return self._leases.get(task)

    def over(self, now: float) -> list[int]:
        """The tasks whose time is up, the longest overdue first."""
        if now < self._soonest:
            return []
        ends = sorted((self._end(lease), lease.task) for lease in self._leases.values())
        self._soonest = ends[0][0] if ends else math.inf  # also of one that is over: a full disk may keep it
        return [task for end, task in ends if end <= now]

    def due(self) -> float:
        """When the next task's time may be up."""
        return self._soonest

    @property
    def deadline(self) -> float:
        """Seconds that a whole task may take."""
        if isinstance(self.settings.deadline, float | int):
            return float(self.settings.deadline)
        if self.settings.deadline == "none" or not self.rounds or len(self._durations) < KNOWN:
            return math.inf
        middle = median(self._durations)
        spread = median(abs(duration - middle) for duration in self._durations)
        return max(LEAST, middle + 4 * spread)

    def _end(self, lease: Lease) -> float:
        return min(lease.until, lease.began + self.deadline)
