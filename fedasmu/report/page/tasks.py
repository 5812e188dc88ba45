"""The tasks of a run as columns: what each device did when, told from the events and the fleet.

The events have the moments at which something reached the server or left it. When a device began to send, and when a
download was complete, follows from its link and the bytes, as in the simulation.
"""

from __future__ import annotations

import base64
import csv
import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.errors import UserError
from fedasmu.result import Result

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
    for event in result.events:
        kind, until = event["event"], event["time"]
        if kind == "start":
            rows[event["task"]] = {"start": until, "device": event["device"], "base": event["version"]}
        elif kind == "version":
            versions.append(until)
            for task, weight in zip(event["tasks"], event["weights"], strict=False):
                rows.get(task, {}).update({"version": event["version"], "alpha": weight})
        elif (row := rows.get(event["task"])) is None:
            continue  # nothing is known of its start
        elif kind == "fetch":
            row.setdefault("asked", until)
            row.setdefault("fresh", event["fresh"])
        else:
            row |= {"ended": until, "outcome": event.get("verdict", "lost"), **_note(event)}
    until = max(until, float(result.summary["virtual_seconds"]))
    fleet = _fleet(result.directory / "fleet.csv") if rows else []
    _derive_moments(list(rows.values()), fleet, result, until)
    return Tasks(
        _columns(list(rows.values())), np.array(versions), _array([d["seconds_per_sample"] for d in fleet]), until
    )


def _fleet(path: Path) -> list[dict[str, float]]:
    if not path.is_file():
        raise UserError(f"{path}: missing; without the devices' links there is no timeline")
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def _note(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("staleness", "beta", "reward", "slot") if event.get(name) is not None}


def _derive_moments(rows: list[dict[str, Any]], fleet: list[dict[str, float]], result: Result, until: float) -> None:
    whole, down, up = _bytes(rows, result)
    for row in rows:
        device, start = fleet[row["device"]], row["start"]
        end = row.get("ended", until)
        received = min(start + _seconds(device, down, "down_mbps"), end)
        row |= {"down": received - start, "end": end - start}
        if "asked" in row:
            fresh = 0.0 if row["fresh"] is None else whole
            row["ask"] = max(row["asked"] - device["latency"], received) - start
            row["answer"] = min(row["asked"] + _seconds(device, fresh, "down_mbps"), end) - start
        if row.get("outcome", "lost") != "lost":
            row["up"] = max(end - _seconds(device, up, "up_mbps") - start, row.get("answer", row["down"]))


def _seconds(device: dict[str, float], size: float, link: str) -> float:
    return device["latency"] + size * 8e-6 / device[link]


def _bytes(rows: list[dict[str, Any]], result: Result) -> tuple[float, float, float]:
    """The model's, and what an average task downloads and uploads: less where a method sends parts of the model."""
    summary, path = result.summary, result.directory / "model.safetensors"
    up = summary["bytes_up"] / max(summary["uploads"], 1)
    whole = up
    if path.is_file():
        with path.open("rb") as file:
            whole = path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")  # the header tells its own length
    fresh = whole * sum(row.get("fresh") is not None for row in rows)
    return whole, max(summary["bytes_down"] - fresh, 0.0) / max(len(rows), 1), up


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
