"""Whether a run directory is what a run leaves behind. They are passed around, cut short and edited.

Everything that a report computes with is checked here, once, so that what is broken is told by the name of its file and
one broken run does not spoil the report of the others.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedasmu.errors import UserError, reading
from fedasmu.run.result import EVENTS, Result, flat

FILES = ("summary.json", "config.toml", "metrics.csv")
FINITE = ("time", "version", "uploads", "bytes_down", "bytes_up")  # columns of the metrics

Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
SCORE: TypeAdapter[float] = TypeAdapter(Number, config=ConfigDict(strict=True))
Note = Number | Literal["nan", "inf", "-inf"] | None  # JSON has no word for these


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Summary(Strict):
    method: str
    data: str
    seed: Annotated[int, Field(ge=0)]
    time_to: dict[Annotated[str, Field(pattern=r"^-?\d{1,20}(\.\d{1,20})?(e[-+]\d{1,3})?$")], Amount | None]
    virtual_seconds: Amount
    version: Amount
    uploads: Amount
    stale: Amount
    refused: Amount
    lost: Amount
    mean_staleness: Amount
    bytes_down: Amount
    bytes_up: Amount
    bytes_fresh: Amount = 0.0
    wall_seconds: Amount


class Start(Strict):
    event: Literal["start"]
    time: Amount
    task: int
    device: Count
    version: Count


class Version(Strict):
    event: Literal["version"]
    time: Amount
    version: Count
    tasks: list[int]
    weights: list[Note]


class Fetched(Strict):
    event: Literal["fetch"]
    time: Amount
    task: int
    fresh: Count | None


class Ended(Strict):
    event: Literal["upload", "lost"]
    time: Amount
    task: int
    verdict: Literal["accepted", "stale", "refused"] | None = None
    staleness: Count | None = None
    slot: Count | None = None
    beta: Note = None
    reward: Note = None


class Device(BaseModel):
    seconds_per_sample: Amount
    down_mbps: Annotated[Amount, Field(gt=0)]
    up_mbps: Annotated[Amount, Field(gt=0)]
    latency: Amount


EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[Start | Version | Fetched | Ended, Field(discriminator="event")])


def sound(results: Iterable[Result], say: Callable[[str], None]) -> list[Result]:
    """Those that a report can be made of. Says of each other one what is wrong with it."""
    kept = []
    for result in results:
        try:
            check(result)
            kept.append(result)
        except UserError as error:
            say(f"left out: {error}")
    return kept


def check(result: Result) -> None:
    """A UserError that names the file, if this is not what a finished run leaves behind."""
    place = result.directory
    for name in FILES:
        if not (place / name).is_file():
            raise UserError(f"{place / name}: missing")
    with _reading(place / "summary.json"):
        Summary.model_validate(result.summary)
        for name in (result.metric.name, f"best_{result.metric.name}"):
            SCORE.validate_python(result.summary[name])
    with _reading(place / "config.toml"):
        _check_config(flat(result.config))
    with _reading(place / "metrics.csv"):
        _check_curve(result.curve)
        _check_scores(result)
    if result.has_events and (devices := _check_events(place / EVENTS)):
        _check_fleet(place / "fleet.csv", devices)


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """As `reading`; of what pydantic finds, the first mistake."""
    with reading(path):
        try:
            yield
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _check_config(settings: dict[str, Any]) -> None:
    str(settings)  # numbers of thousands of digits cannot be written
    if not isinstance(settings["seed"], int):
        raise ValueError(f"seed = {settings['seed']!r}")
    for key in ("model.name", "data.name"):
        if not isinstance(settings[key], str):
            raise ValueError(f"{key} = {settings[key]!r}")


def _check_curve(curve: dict[str, Any]) -> None:
    for name in FINITE:
        if not len(curve[name]):
            raise ValueError("no evaluation")
        if not np.isfinite(curve[name]).all() or (curve[name] < 0).any():
            raise ValueError(f"the column {name} has a value that it cannot have")
    if (np.diff(curve["time"]) < 0).any():
        raise ValueError("a time before the last one")


def _check_scores(result: Result) -> None:
    name, scores = result.metric.name, result.scores
    if not np.isfinite(scores).all() or (result.metric.is_share and ((scores < 0) | (scores > 1)).any()):
        raise ValueError(f"the column {name} has a value that it cannot have")


def _check_events(path: Path) -> int:
    """How many devices the events tell of."""
    if not path.is_file():
        raise UserError(f"{path}: not a file")
    devices = number = 0
    with reading(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            with _reading(f"{path}, line {number}"):
                event = EVENT.validate_json(line)
                if isinstance(event, Start):
                    devices = max(devices, event.device + 1)
    return devices


def _check_fleet(path: Path, devices: int) -> None:
    if not path.is_file():
        raise UserError(f"{path}: missing; without the devices' links there is no timeline")
    with _reading(path), path.open() as file:
        known = [Device.model_validate(row) for row in csv.DictReader(file)]
        if len(known) < devices:
            raise ValueError(f"{len(known)} devices, but the events tell of {devices}")
