"""Devices as they could be measured: how fast they compute, how wide their links are. Drawn, read and written."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedasmu.errors import UserError
from fedasmu.roster import Seconds
from fedasmu.seeding import derive
from fedasmu.settings.fleets import FLEET_FILES, FleetSettings


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

    def download(self, size: float) -> float:
        return self.latency + size * 8e-6 / self.down_mbps

    def upload(self, size: float) -> float:
        return self.latency + size * 8e-6 / self.up_mbps

    def task(self, samples: int, size: int) -> Seconds:
        """How long a task takes that trains on so many samples, with a model of this size."""
        return Seconds(self.download(size), samples * self.seconds_per_sample, self.upload(size))


def profiles(settings: FleetSettings, seed: int) -> list[Profile]:
    """Those of a recipe: from a file, or drawn."""
    if settings.profiles is not None:
        try:
            found = read_profiles(settings.profiles)
        except UserError as error:
            raise UserError(f"fleet.profiles: {error}") from None
        if len(found) != settings.devices:
            raise UserError(f"fleet.profiles has {len(found)} devices, but there are {settings.devices} in all")
        return found
    try:
        return _drawn(settings, seed)
    except ValueError as error:
        raise UserError(f"fleet: {error}") from None


def vouched_for(settings: FleetSettings) -> FleetSettings:
    """The section with the digests of the files that it names. Refuses others than it vouches for."""
    digests = {}
    for key in FLEET_FILES:
        path, known = getattr(settings, key), getattr(settings, f"{key}_sha256")
        if path is None:
            continue
        try:
            found = sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"fleet.{key}: {path}: cannot be read: {error.strerror}") from None
        if known not in (None, found):
            raise UserError(
                f"fleet.{key} = {path}: not the file that the recipe names: its digest is {found}, "
                f"and fleet.{key}_sha256 = {known}"
            )
        digests[f"{key}_sha256"] = found
    return settings.model_copy(update=digests)


def _drawn(settings: FleetSettings, seed: int) -> list[Profile]:
    names = ("seconds_per_sample", "down_mbps", "up_mbps", "link_spread", "latency")
    drawn: dict[str, Any] = {name: getattr(settings, name) for name in names}
    if settings.spread != "log-normal":
        ratio = settings.slowest_over_fastest
        return draw_profiles(settings.devices, seed, settings.spread, ratio, **drawn)
    alike = draw_profiles(settings.devices, seed, "uniform", 1.0, **drawn)
    normal = np.random.Generator(np.random.Philox(derive(seed, "log-normal"))).standard_normal(len(alike))
    return [_slower(profile, math.exp(settings.sigma * z)) for profile, z in zip(alike, normal.tolist(), strict=True)]


def _slower(profile: Profile, factor: float) -> Profile:
    """Its training and its transfers take so many times as long, so that whole round trips do."""
    return Profile(
        profile.seconds_per_sample * factor, profile.down_mbps / factor, profile.up_mbps / factor, profile.latency
    )


def write_profiles(profiles: Sequence[Profile], path: Path) -> None:
    """As CSV; `read_profiles` gives them back exactly."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["device", *(field.name for field in fields(Profile))])
        writer.writerows([device, *astuple(profile)] for device, profile in enumerate(profiles))


def read_profiles(path: Path) -> list[Profile]:
    names = [field.name for field in fields(Profile)]
    profiles: dict[int, Profile] = {}
    for place, row in enumerate(rows(path)):
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


def rows(path: Path) -> Iterable[dict[str, str]]:
    """Of a CSV file, or of a list of objects in a JSON file."""
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(found, list):
        raise UserError(f"{path}: expected a list of objects")
    return found


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
