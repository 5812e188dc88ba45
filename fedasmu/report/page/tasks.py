"""The tasks of a run as columns: what each device did when, told from the events and the fleet.

The events have the moments at which something reached the server or left it. When a device began to send, and when a
download was complete, follows from its link and the bytes, as in the simulation.
"""

from __future__ import annotations

import base64
import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.algorithms.fedasmu.notes import MergeNote
from fedasmu.encoding.note import of_line, table
from fedasmu.errors import UserError
from fedasmu.events import Delivered, Fetched, Lost, Renewed, Started
from fedasmu.run.profiles import Profile, read_profiles
from fedasmu.run.result import Result

OUTCOMES = ("accepted", "stale", "refused", "lost", "under way")
# Seconds after the task's start: download complete, request sent, answer there, upload begun, end. NaN: did not happen.
MOMENTS = ("down", "ask", "answer", "up", "end")
NUMBERS = ("alpha", "beta", "reward")
COUNTS = ("device", "base", "fresh", "staleness", "version", "slot")  # -1: there is none
Column = NDArray[Any]


@dataclass(frozen=True)
class Tasks:
    columns: dict[str, Column]  # one value a task, in the order of their starts
    versions: Column  # the moment of every version, from the first on
    speeds: Column  # of every device: seconds to train on one example
    until: float

    @property
    def delivered(self) -> Column:
        return self.columns["outcome"] < OUTCOMES.index("lost")

    @property
    def moment(self) -> Column:
        """The share of its training that a device had done when it asked for a fresh model."""
        at = self.columns
        before, after = at["ask"] - at["down"], at["up"] - at["answer"]
        return np.where(self.delivered, before / np.maximum(before + after, 1e-9), np.nan)

    def packed(self) -> dict[str, Any]:
        """For the page: every column's bytes, compressed. The widest come first, so that each lies aligned."""
        columns = {**self.columns, "versions": self.versions, "speeds": self.speeds}
        order = sorted(columns, key=lambda name: -columns[name].itemsize)
        data = gzip.compress(b"".join(columns[name].tobytes() for name in order), mtime=0)
        return {
            "columns": [[name, columns[name].dtype.str[1:], len(columns[name])] for name in order],
            "data": base64.b64encode(data).decode(),
            "until": self.until,
        }


def tasks(result: Result) -> Tasks:
    rows: dict[int, dict[str, Any]] = {}
    versions: list[float] = []
    until = 0.0
    for event in result.typed_events if result.has_events else ():
        until = event.time
        if isinstance(event, Started):
            rows[event.task] = {"start": until, "device": event.device, "base": event.version}
        elif isinstance(event, Renewed):
            versions.append(until)
            for task, weight in zip(event.tasks, event.weights, strict=False):
                rows.get(task, {}).update({"version": event.version, "alpha": weight})
        elif (row := rows.get(event.task)) is None:
            continue  # nothing is known of its start
        elif isinstance(event, Fetched):
            row.setdefault("asked", until)
            row.setdefault("fresh", event.fresh)
        elif isinstance(event, Lost):
            row |= {"ended": until, "outcome": "lost"}
        else:
            row |= {"ended": until, "outcome": event.verdict, "staleness": event.staleness, **_noted(event)}
    until = max(until, float(result.summary["virtual_seconds"]))
    fleet = _fleet(result.directory / "fleet.csv") if rows else []
    _derive_moments(list(rows.values()), fleet, result, until)
    speeds = _array([profile.seconds_per_sample for profile in fleet])
    return Tasks(_columns(list(rows.values())), np.array(versions), speeds, until)


def _fleet(path: Path) -> list[Profile]:
    if not path.is_file():
        raise UserError(f"{path}: missing; without the devices' links there is no timeline")
    return read_profiles(path)


def _noted(event: Delivered) -> dict[str, Any]:
    note = of_line(MergeNote, event.notes)
    return table(MergeNote(beta=note.beta, reward=note.reward, slot=note.slot))


def _derive_moments(rows: list[dict[str, Any]], fleet: list[Profile], result: Result, until: float) -> None:
    fresh_bytes, down, up = _bytes(rows, result)
    for row in rows:
        device, start = fleet[row["device"]], row["start"]
        end = row.get("ended", until)
        received = min(start + device.download(down), end)
        row |= {"down": received - start, "end": end - start}
        if "asked" in row:
            fresh = 0.0 if row["fresh"] is None else fresh_bytes
            row["ask"] = max(row["asked"] - device.latency, received) - start
            row["answer"] = min(row["asked"] + device.download(fresh), end) - start
        if row.get("outcome", "lost") != "lost":
            row["up"] = max(end - device.upload(up) - start, row.get("answer", row["down"]))


def _bytes(rows: list[dict[str, Any]], result: Result) -> tuple[float, float, float]:
    """A fresh model's, and what an average task downloads and uploads: less where parts of the model are sent."""
    summary, asked = result.summary, sum(row.get("fresh") is not None for row in rows)
    up = summary["bytes_up"] / max(summary["uploads"], 1)
    fresh = result.fresh_bytes / max(asked, 1)
    return fresh, max(summary["bytes_down"] - asked * fresh, 0.0) / max(len(rows), 1), up


def _columns(rows: list[dict[str, Any]]) -> dict[str, Column]:
    def counted(name: str) -> list[int]:
        return [-1 if row.get(name) is None else int(row[name]) for row in rows]

    return {
        "start": np.array([row["start"] for row in rows], dtype=np.float64),
        **{name: _array([row.get(name, math.nan) for row in rows]) for name in (*MOMENTS, *NUMBERS)},
        **{name: np.array(counted(name), dtype=np.int32) for name in COUNTS},
        "outcome": np.array([OUTCOMES.index(row.get("outcome", "under way")) for row in rows], dtype=np.uint8),
    }


def _array(values: list[float]) -> Column:
    return np.array(values, dtype=np.float32)
