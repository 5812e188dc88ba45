"""A fleet as it was: from the times of a deployed or rehearsed run to what a simulation needs to repeat them.

What is measured is how long a task took, by the server's clock: from the moment that it was sent until its upload had
arrived. Of that the upload is known, and the training is what the device says, as far as it fits; what is left is put
down to the way of the models to the device. Where `links.csv` does not tell, all is taken for training, and links are
as wide as can be. Latencies are not told from bandwidths.
"""

from __future__ import annotations

import csv
import math
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from fedasmu.data.federated import held_count
from fedasmu.errors import UserError
from fedasmu.events import Delivered, Event, Lost, Started
from fedasmu.run import links
from fedasmu.run.links import Way
from fedasmu.run.profiles import Profile, rows, write_profiles
from fedasmu.run.result import Result
from fedasmu.session import FORWARD

WIDE = 1e6  # megabits a second: no transfer takes any time
INSTANT = 1e-9  # seconds for an example: of a device that says to need none
MOST = 0.95  # of a jitter that can be simulated
STAYS = 1e9  # seconds: until when a device is there that was there at the end
AWAY = 0.02  # share of the run that devices were absent for, below which they count as always there

Window = tuple[int, float, float]  # device, from, until: when it was there


@dataclass(frozen=True)
class Times:
    """How long the tasks of each device took, and which were never delivered."""

    seconds: Mapping[int, Sequence[float]]  # of whole tasks
    parted: Mapping[int, Sequence[tuple[Way, float]]]  # those of them whose parts are known, each with its seconds
    lost: Sequence[Window]  # of each task that was given up its device, its start and its end
    until: float  # the time of the last event

    @classmethod
    def of(cls, events: Iterable[Event], ways: Mapping[int, Way] | None = None) -> Times:
        began: dict[int, float] = {}
        seconds: dict[int, list[float]] = defaultdict(list)
        parted: dict[int, list[tuple[Way, float]]] = defaultdict(list)
        lost: list[Window] = []
        until = 0.0
        for event in events:
            until = event.time
            if isinstance(event, Started):
                began[event.task] = event.time
            elif isinstance(event, Delivered):
                took = event.time - _began(began, event)
                seconds[event.device].append(took)
                if ways and event.task in ways:
                    parted[event.device].append((ways[event.task], took))
            elif isinstance(event, Lost):
                lost.append((event.device, _began(began, event), event.time))
        return cls(seconds, parted, lost, until)

    def training(self, device: int) -> Sequence[float]:
        """Seconds of each task's training; of the whole tasks, where their parts are not known."""
        return [way.of(took)[1] for way, took in self.parted.get(device, [])] or self.seconds[device]

    def profile(self, device: int, samples: float) -> Profile:
        """A device whose tasks take as long as these, when each trains on so many samples."""
        rate = max(statistics.fmean(self.training(device)) / samples, INSTANT)
        known = self.parted.get(device, [])
        down = _mbps(sum(way.bytes_down for way, _ in known), sum(way.of(took)[0] for way, took in known))
        up = _mbps(sum(way.bytes_up for way, _ in known), sum(way.of(took)[2] for way, took in known))
        return Profile(rate, down, up)

    def dropout(self, windows: Iterable[Window] = ()) -> float:
        """The share of the tasks that were lost. A device that left, by these windows, loses its task by that alone."""
        left: dict[int, list[float]] = defaultdict(list)
        for device, _, until in windows:
            left[device].append(until)
        lost = sum(not any(began <= end <= ended for end in left[device]) for device, began, ended in self.lost)
        return lost / max(lost + sum(map(len, self.seconds.values())), 1)

    @property
    def jitter(self) -> float:
        """Times that vary evenly by up to this share have as great a mean deviation as these have."""
        trainings = [times for device in self.seconds if len(times := self.training(device)) > 1 and any(times)]
        shares = [abs(one / statistics.fmean(times) - 1) for times in trainings for one in times]
        return min(MOST, 2 * statistics.fmean(shares)) if shares else 0.0


@dataclass(frozen=True)
class Measured:
    profiles: Sequence[Profile]
    windows: Sequence[Window]  # when they were there; none: always
    jitter: float
    dropout: float
    guessed: Sequence[int]  # devices that delivered nothing: taken for ordinary ones
    examples: Sequence[int]  # of each device

    def write(self, folder: Path) -> dict[str, object]:
        """profiles.csv, and trace.csv if devices came and went. The keys of `[fleet]` that say so."""
        folder.mkdir(parents=True, exist_ok=True)
        write_profiles(self.profiles, folder / "profiles.csv")
        keys: dict[str, object] = {"devices": len(self.profiles), "profiles": str((folder / "profiles.csv").resolve())}
        if self.windows:
            with (folder / "trace.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([("device", "start", "end"), *self.windows])
            keys["trace"] = str((folder / "trace.csv").resolve())
        return keys | {"jitter": round(self.jitter, 4), "dropout": round(self.dropout, 4), "availability": 1.0}


def measure(directory: Path) -> Measured:
    """The fleet of a run that was served or rehearsed."""
    result = Result(directory)
    times, local = Times.of(result.typed_events, links.read(directory)), result.config["local"]
    share = float(result.config.get("evaluate", {}).get("on_devices", 0.0))
    examples = _examples(directory / "register.db", int(result.config["fleet"]["devices"]))
    work = [_samples(count, share, int(local["epochs"])) for count in examples]
    found = {device: times.profile(device, work[device]) for device in times.seconds}
    if not found:
        raise UserError(f"{directory}: no device has delivered anything yet, so there is no time to go by")
    ordinary = Profile(*map(statistics.median, zip(*map(astuple, found.values()), strict=True)))
    profiles = [found.get(device, ordinary) for device in range(len(work))]
    windows = _windows(directory / "presence.csv", times.until, len(work))
    return Measured(
        profiles, windows, times.jitter, times.dropout(windows), sorted(set(range(len(work))) - found.keys()), examples
    )


def _began(began: Mapping[int, float], event: Delivered | Lost) -> float:
    if event.task not in began:
        raise UserError(f"events.jsonl: task {event.task} of device {event.device} ends and never began")
    return began[event.task]


def _mbps(size: int, seconds: float) -> float:
    return min(WIDE, 8e-6 * size / seconds) if seconds > 0 else WIDE


def _samples(examples: int, share: float, epochs: int) -> float:
    """What a task costs, in examples trained on."""
    held = held_count(examples, share)
    return epochs * (examples - held) + FORWARD * held


def _examples(path: Path, devices: int) -> list[int]:
    """Of each seat; an empty one is taken for an ordinary one."""
    if not path.is_file():
        raise UserError(f"{path.parent}: not a run that was served or rehearsed; a simulation's fleet is its recipe's")
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            known = dict(database.execute("SELECT seat, examples FROM seats"))
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not known:
        raise UserError(f"{path.parent}: no device has taken its seat yet")
    ordinary = int(statistics.median(known.values()))
    return [max(1, int(known.get(seat, ordinary))) for seat in range(devices)]


def _windows(path: Path, until: float, devices: int) -> list[Window]:
    """When devices were there, unless that is nearly always."""
    if not path.is_file():
        return []
    try:
        found = [(int(row["device"]), float(row["start"]), float(row["end"])) for row in rows(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: expected the columns device,start,end as numbers: {error}") from None
    there = math.fsum(min(end, until) - start for _, start, end in found if start < until)
    if there >= (1 - AWAY) * until * devices:
        return []
    return [(device, start, STAYS if end >= until else end) for device, start, end in found if start < end]
