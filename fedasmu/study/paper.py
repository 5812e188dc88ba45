"""What the paper printed: paper.csv has its two tables, claims.csv the gains that its text gives, in percent.

Times are simulated seconds to the target accuracy; none where a method never reached it.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
Measure = Literal["accuracy", "time", "spread"]
EVERY = "every baseline"
NEXT_TO_NONE = 1e-9  # seconds that a model needs which was there before its training began


@dataclass(frozen=True)
class Printed:
    """One method in one column of a table."""

    accuracy: float
    time: float  # infinity: never


@dataclass(frozen=True)
class Claim:
    """`better` beats `worse`: by so many points of accuracy, or by so many percent of the time.

    The measure "spread": however its settings are chosen, the accuracy differs by no more than `high` points.
    """

    measure: Measure
    better: str
    worse: str
    low: float
    high: float

    def __str__(self) -> str:
        if self.measure == "spread":
            return f"{self.better}'s settings matter little"
        return f"{self.better} is {'more accurate' if self.measure == 'accuracy' else 'faster'} than {self.worse}"


@cache
def printed(table: str) -> dict[str, dict[str, Printed]]:
    """recipe -> method -> what the table says"""
    columns: dict[str, dict[str, Printed]] = {}
    with (HERE / "paper.csv").open() as file:
        for row in csv.DictReader(file):
            if row["table"] == table:
                entry = Printed(float(row["accuracy"]), float(row["time"] or "inf"))
                columns.setdefault(row["recipe"], {})[row["method"]] = entry
    return columns


def gain(measure: Measure, better: float, worse: float) -> float:
    """Points of accuracy, or percent of the time saved; infinity: only the better one got there; NaN: neither did."""
    if measure == "accuracy":
        return 100 * (better - worse)
    if math.isinf(worse):
        return math.nan if math.isinf(better) else math.inf
    return -math.inf if math.isinf(better) else 100 * (1 - max(better, NEXT_TO_NONE) / max(worse, NEXT_TO_NONE))


def claims(study: str) -> list[Claim]:
    """Those of the text; for a table, FedASMU against each baseline, with the range over its columns."""
    if columns := printed(study):
        return _of_table(columns)
    with (HERE / "claims.csv").open() as file:
        return [
            Claim(row["measure"], row["better"], row["worse"], float(row["low"]), float(row["high"]))  # type: ignore[arg-type]
            for row in csv.DictReader(file)
            if row["study"] == study
        ]


def _of_table(columns: dict[str, dict[str, Printed]]) -> list[Claim]:
    found = []
    measures: tuple[Measure, ...] = ("accuracy", "time")
    for worse in [method for method in next(iter(columns.values())) if method != "fedasmu"]:
        for measure in measures:
            gains = [
                gain(measure, getattr(column["fedasmu"], measure), getattr(column[worse], measure))
                for column in columns.values()
            ]
            finite = [value for value in gains if math.isfinite(value)]
            found.append(Claim(measure, "fedasmu", worse, min(finite), max(finite)))
    return found
