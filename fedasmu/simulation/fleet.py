"""The simulated devices: how fast they are in each task, when they are there and whether they die."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedasmu.errors import UserError
from fedasmu.run.profiles import Profile, rows
from fedasmu.seeding import uniform


class Availability(Protocol):
    horizon: float  # nobody is ever available after this time
    longest: float  # the most seconds that a device stays

    def until(self, device: int, time: float) -> float | None:
        """When the device next goes offline, or None if it is offline now."""


class Always:
    horizon = longest = math.inf

    def until(self, device: int, time: float) -> float | None:
        return math.inf


class Cycle:
    """Every device is there for a share of each cycle, and each has a phase of its own."""

    horizon = math.inf

    def __init__(self, share: float, cycle: float, seed: int) -> None:
        self.online, self.cycle, self.seed = share * cycle, cycle, seed
        self.longest = self.online

    def until(self, device: int, time: float) -> float | None:
        position = (time + uniform(self.seed, "phase", device) * self.cycle) % self.cycle
        return time + (self.online - position) if position < self.online else None


class Trace:
    """Recorded windows: a CSV of device, start, end in seconds. A device that is not in it is never available."""

    def __init__(self, windows: dict[int, list[tuple[float, float]]]) -> None:
        self.windows = {device: _merged(spans) for device, spans in windows.items()}
        self.horizon = max((end for spans in windows.values() for _, end in spans), default=0.0)
        self.longest = max((end - start for spans in self.windows.values() for start, end in spans), default=0.0)

    @classmethod
    def read(cls, path: Path) -> Trace:
        windows: dict[int, list[tuple[float, float]]] = {}
        for number, row in enumerate(rows(path), start=2):
            try:
                device, start, end = int(row["device"]), float(row["start"]), float(row["end"])
            except (KeyError, TypeError, ValueError, OverflowError):
                raise UserError(f"{path}, line {number}: expected the columns device,start,end as numbers") from None
            if not 0 <= start < end:
                raise UserError(f"{path}, line {number}: start = {start}, end = {end}: need 0 <= start < end")
            windows.setdefault(device, []).append((start, end))
        return cls(windows)

    def until(self, device: int, time: float) -> float | None:
        spans = self.windows.get(device, [])
        place = bisect_right(spans, (time, math.inf)) - 1
        return spans[place][1] if place >= 0 and time < spans[place][1] else None


@dataclass(frozen=True)
class Fleet:
    profiles: Sequence[Profile]
    seed: int
    jitter: float = 0.0  # each task's training time varies by up to this share
    dropout: float = 0.0  # the chance that a task is never delivered
    availability: Availability = field(default_factory=Always)

    def __len__(self) -> int:
        return len(self.profiles)

    @property
    def mortal(self) -> bool:
        """Whether a task can end by death or by going offline."""
        return self.dropout > 0 or self.availability.longest < math.inf

    def slowdown(self, task: int) -> float:
        """How much slower than its profile says the device is during this task."""
        return 1.0 if not self.jitter else 1.0 + self.jitter * (2.0 * uniform(self.seed, "jitter", task) - 1.0)

    def fails(self, task: int) -> bool:
        """Whether this task is never delivered, however long it takes."""
        return self.dropout > 0 and uniform(self.seed, "dropout", task) < self.dropout

    def death(self, task: int, device: int, start: float, duration: float) -> float:
        """When a task of this nominal duration ends by death or by going offline; infinite if it does not."""
        ends = self.availability.until(device, start)
        ends = math.inf if ends is None else ends
        if self.fails(task):
            return min(ends, start + duration * uniform(self.seed, "death", task))
        return ends


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted, with windows that overlap or touch made one: a device that stays online does not go offline."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
