"""What happens in a run, as values: one for each kind of line in events.jsonl, and one for a line of metrics.csv.

The desk makes them and the record writes them; whoever watches a run, or reads what it left, meets the same types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple


class Verdict(StrEnum):
    """What the server did with a task that was delivered or given up."""

    ACCEPTED = "accepted"
    STALE = "stale"  # older than the staleness bound: discarded
    REFUSED = "refused"  # not a model: wrong length or type, or not finite
    UNKNOWN = "unknown"  # no such task in flight on this device: a duplicate, a replay, or given up as lost
    LOST = "lost"  # given up just now


@dataclass(frozen=True, slots=True)
class Started:
    """A device was sent a task."""

    kind: ClassVar[str] = "start"
    time: float
    task: int
    device: int
    version: int  # that the task starts from


@dataclass(frozen=True, slots=True)
class Fetched:
    """A device asked for a fresh model in the middle of its task."""

    kind: ClassVar[str] = "fetch"
    time: float
    task: int
    device: int
    fresh: int | None  # the version that it got; None: there was nothing newer for it


@dataclass(frozen=True, slots=True)
class Delivered:
    """A device's upload arrived, whatever became of it."""

    kind: ClassVar[str] = "upload"
    time: float
    task: int
    device: int
    base: int  # the version that the task started from
    staleness: int
    verdict: Verdict
    loss: float
    notes: Mapping[str, Any] = field(default_factory=dict)  # what the method's device half wants remembered


@dataclass(frozen=True, slots=True)
class Lost:
    """A task was given up."""

    kind: ClassVar[str] = "lost"
    time: float
    task: int
    device: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """A new version of the global model came to be."""

    kind: ClassVar[str] = "version"
    time: float
    version: int
    tasks: Sequence[int]  # whose uploads it is made of
    weights: Sequence[float]  # of each of them
    notes: Mapping[str, Any] = field(default_factory=dict)  # what the method's server half wants remembered


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluation, with all that is counted: a line of metrics.csv, in the order of its columns."""

    time: float
    version: int
    uploads: int  # received so far
    score: float  # by the metric, whose name heads its column
    loss: float
    train_loss: float | None  # mean over the uploads since the last line that were not refused; None: there were none
    staleness: float | None  # mean over all of these uploads
    stale: int  # uploads discarded so far
    refused: int
    lost: int
    bytes_down: int
    bytes_up: int
    reports: int = 0  # of devices, that accuracy and loss are the mean of; 0: the server measured, on the test data
    device_accuracy: float | None = None  # mean over the devices, each by its last report; None: they do not measure
    worst_tenth: float | None = None  # mean over the tenth of them for which it is lowest
    subset: int = 0  # test examples that score and loss are of, where not all of them were asked; 0: all were
    metric: str = "accuracy"

    def row(self) -> dict[str, Any]:
        """As the file has it: what is unknown is empty."""
        values = (getattr(self, name) for name in _FIELDS)
        return {name: "" if value is None else value for name, value in zip(columns(self.metric), values, strict=True)}


_FIELDS = tuple(one.name for one in fields(Measured) if one.name != "metric")
COLUMNS = tuple(name for name in _FIELDS if name != "score")  # besides the metric


def columns(metric: str) -> list[str]:
    """The head of metrics.csv."""
    return [metric if name == "score" else name for name in _FIELDS]


Event = Started | Fetched | Delivered | Lost | Renewed
KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (Started, Fetched, Delivered, Lost, Renewed)}
NAMES = {
    name: [one.name for one in fields(kind) if one.name not in ("time", "notes")] for name, kind in KINDS.items()
}  # of a line's own fields, behind the time and the kind
COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def line(event: Event) -> dict[str, Any]:
    """An event as its line has it. What a method notes comes last, and never in place of one of our own fields."""
    found: dict[str, Any] = {"time": event.time, "event": event.kind}
    for name in NAMES[event.kind]:
        found[name] = getattr(event, name)
    notes = event.notes if isinstance(event, (Delivered, Renewed)) else {}
    return found | {key: value for key, value in notes.items() if key not in found} if notes else found


def text(event: Event) -> str:
    """The line itself: JSON. It knows no infinity and no NaN, so these are strings."""
    form = _FORMS[type(event)]
    line, values = form.own, form.values(event)
    if form.noting and event.notes:  # type: ignore[union-attr]
        notes = {key: value for key, value in event.notes.items() if key not in form.names}  # type: ignore[union-attr]
        line, values = line + _further(*notes), (*values, *notes.values())
    return line % tuple(_written(values)) + "}"


def _written(values: Iterable[Any]) -> list[Any]:
    """As COMPACT has them, but quicker for the plain numbers that nearly all of a line is: these write themselves."""
    return [
        value if (kind := type(value)) is int or (kind is float and isfinite(value)) else _json(value)
        for value in values
    ]


def _json(value: Any) -> str:
    if isinstance(value, float):
        return float.__repr__(value) if isfinite(value) else f'"{float(value)}"'
    if type(value) is list:
        return f"[{','.join(map(str, _written(value)))}]"
    if type(value) is Verdict:
        return _key(value)
    return "null" if value is None else COMPACT.encode(value)


@lru_cache(1000)
def _further(*names: Any) -> str:
    """The notes of these names, with a place for each value."""
    return "".join(f",{_key(name)}".replace("%", "%%") + ":%s" for name in names)


@lru_cache(1000)
def _key(name: Any) -> str:
    return COMPACT.encode(str(name))


class _Form(NamedTuple):
    """How a kind of event is written."""

    own: str  # its line up to the notes, with a place for each value
    values: Callable[[Event], tuple[Any, ...]]
    names: frozenset[str]
    noting: bool


def _form(kind: type[Event]) -> _Form:
    names = NAMES[kind.kind]
    own = f'{{"time":%s,"event":{_key(kind.kind)}' + "".join(f",{_key(name)}:%s" for name in names)
    noting = any(one.name == "notes" for one in fields(kind))
    return _Form(own, attrgetter("time", *names), frozenset(("time", "event", *names)), noting)


_FORMS = {kind: _form(kind) for kind in KINDS.values()}


def of_line(found: Mapping[str, Any]) -> Event:
    """The event of a line. Raises ValueError for what is none of ours."""
    kind = KINDS.get(found.get("event", ""))
    if kind is None:
        raise ValueError(f"event = {found.get('event')!r}: there is {', '.join(KINDS)}")
    names = ["time", *NAMES[kind.kind]]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"a line of kind {kind.kind} has no {missing[0]}")
    own = {name: found[name] for name in names}
    if kind is Delivered:
        own |= {"verdict": Verdict(own["verdict"]), "loss": float(own["loss"])}  # one that is not finite is a string
    if kind in (Delivered, Renewed):
        own["notes"] = {key: value for key, value in found.items() if key not in (*names, "event")}
    return kind(**own)
