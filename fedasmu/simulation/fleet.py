"""The devices: how fast they compute, how wide their links are, when they are there and whether they die."""

from __future__ import annotations

import csv
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Protocol

import numpy as np

from fedasmu.errors import UserError
from fedasmu.roster import Seconds
from fedasmu.seeding import derive, uniform


@dataclass(frozen=True, slots=True)
class Profile:
    """One device, as it could be measured."""

    seconds_per_sample: float  # to train on one example once
    down_mbps: float
    up_mbps: float
    latency: float = 0.0  # seconds, one way

    def __post_init__(self) -> None:
        for name in ("seconds_per_sample", "down_mbps", "up_mbps"):
            if not (value := getattr(self, name)) > 0 or math.isinf(value):
                raise ValueError(f"{name} = {value}: must be a positive number")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency = {self.latency}: must be 0 or more")

    def download(self, size: int) -> float:
        return self.latency + size * 8e-6 / self.down_mbps

    def upload(self, size: int) -> float:
        return self.latency + size * 8e-6 / self.up_mbps

    def task(self, samples: int, size: int) -> Seconds:
        """How long a task takes that trains on so many samples, with a model of this size."""
        return Seconds(self.download(size), samples * self.seconds_per_sample, self.upload(size))


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
        for number, row in enumerate(_rows(path), start=2):
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

    def slowdown(self, task: int) -> float:
        """How much slower than its profile says the device is during this task."""
        return 1.0 if not self.jitter else 1.0 + self.jitter * (2.0 * uniform(self.seed, "jitter", task) - 1.0)

    def fails(self, task: int) -> bool:
        """Whether this task is never delivered, however long it takes."""
        return uniform(self.seed, "dropout", task) < self.dropout

    def death(self, task: int, device: int, start: float, duration: float) -> float:
        """When a task of this nominal duration ends by death or by going offline; infinite if it does not."""
        ends = self.availability.until(device, start)
        ends = math.inf if ends is None else ends
        if self.fails(task):
            return min(ends, start + duration * uniform(self.seed, "death", task))
        return ends

    def write(self, path: Path) -> None:
        """Profiles as CSV or JSON, by the file's name; `read_profiles` gives them back exactly."""
        names = [field.name for field in fields(Profile)]
        rows = [
            {"device": device, **{name: getattr(profile, name) for name in names}}
            for device, profile in enumerate(self.profiles)
        ]
        with path.open("w", newline="") as file:
            if path.suffix == ".json":
                json.dump(rows, file, indent=1)
            else:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def read_profiles(path: Path) -> list[Profile]:
    names = [field.name for field in fields(Profile)]
    profiles: dict[int, Profile] = {}
    for place, row in enumerate(_rows(path)):
        try:
            profiles[int(row.get("device", place))] = Profile(**{name: float(row[name]) for name in names})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{path}, device {place}: {what}; every device needs {', '.join(names)}") from None
    if not profiles:
        raise UserError(f"{path}: there is no device in it")
    if sorted(profiles) != list(range(place + 1)):
        raise UserError(f"{path}: the column device must number {place + 1} devices from 0 to {place}, each once")
    return [profiles[device] for device in range(len(profiles))]


def _rows(path: Path) -> Iterable[dict[str, str]]:
    try:
        text = path.read_text()
        rows = json.loads(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of objects")
    return rows


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted, with windows that overlap or touch made one: a device that stays online does not go offline."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def draw_profiles(
    devices: int,
    seed: int,
    spread: str,
    slowest_over_fastest: float,
    seconds_per_sample: float,
    down_mbps: float,
    up_mbps: float,
    link_spread: tuple[float, float],
    latency: float,
) -> list[Profile]:
    """A fleet of unequal devices: the fastest needs `seconds_per_sample`, and with two or more the ratio is exact."""
    random = np.random.Generator(np.random.Philox(derive(seed, "fleet")))
    position = random.permutation(_positions(random, devices))
    linear, logarithmic = 1.0 + (slowest_over_fastest - 1.0) * position, slowest_over_fastest**position
    factors = linear if spread == "uniform" else logarithmic
    links = random.uniform(*link_spread, size=devices)
    return [
        Profile(seconds_per_sample * float(factor), down_mbps * float(link), up_mbps * float(link), latency)
        for factor, link in zip(factors, links, strict=True)
    ]


def _positions(random: np.random.Generator, devices: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Uniform places between the fastest (0) and the slowest (1) device, both of which exist."""
    return np.concatenate(([0.0, 1.0], random.random(max(devices - 2, 0))))[:devices]
