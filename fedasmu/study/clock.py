"""The paper's clock: which round, or which upload, a printed time would be in one of our fleets.

Runs that train nothing say how long the whole budget of a cell takes; a printed time beyond it cannot have been
measured in that fleet. docs/decisions/0040-the-fleet-of-the-tables.md draws the conclusions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from fedasmu.algorithms import named
from fedasmu.data import describe
from fedasmu.experiment import Experiment
from fedasmu.report.tables import Grid
from fedasmu.settings.recipe import load
from fedasmu.study.paper import Printed, printed

ROUNDS, UPLOADS = 500, 5000
TABLES = ("table1", "table2")


@dataclass(frozen=True)
class Lengths:
    """Seconds that a cell's budget takes: means over the seeds."""

    synchronous: float  # 500 rounds of ten devices
    asynchronous: float  # 5,000 uploads

    def share(self, method: str, seconds: float) -> float:
        return seconds / (self.synchronous if waits(method) else self.asynchronous)


def waits(method: str) -> bool:
    """Whether it is synchronous: the server waits for all whom it started."""
    return named(method).kind == "synchronous"


def lengths(recipe: Path, seeds: Sequence[int], overrides: Sequence[str] = ()) -> Lengths:
    found = {
        method: mean(_length(recipe, method, seed, overrides) for seed in seeds) for method in ("fedavg", "fedasync")
    }
    return Lengths(found["fedavg"], found["fedasync"])


def _length(recipe: Path, method: str, seed: int, overrides: Sequence[str]) -> float:
    config = load(recipe, overrides)
    each = describe(config.data.name).train // config.fleet.devices
    changes = ["timing_only=true", f"data.per_device={each}", f"stop.uploads={UPLOADS}", f"evaluate.every={UPLOADS}"]
    with TemporaryDirectory() as directory:
        config = load(recipe, [*overrides, *changes, f"algorithm.name={method}", f"seed={seed}"])
        return float(Experiment(config).run(Path(directory) / "run").curve["time"][-1])


def columns() -> dict[str, Mapping[str, Printed]]:
    """Both tables: recipe -> method -> what is printed"""
    return {recipe: column for table in TABLES for recipe, column in printed(table).items()}


def table(recipes: Path, seeds: Sequence[int], overrides: Sequence[str] = ()) -> Grid:
    """Every cell of the two tables in this fleet."""
    rows = tuple(
        _row(recipe, column, lengths(recipes / f"{recipe}.toml", seeds, overrides))
        for recipe, column in columns().items()
    )
    header = (
        "cell",
        "s a round",
        "s an upload",
        "FedAvg in round",
        "FedASMU at upload",
        "longest sync.",
        "longest async.",
    )
    note = (
        f"In which of {ROUNDS} rounds, and at which of {UPLOADS} uploads, the printed times would be. Longest: the "
        "longest printed time of a synchronous and of an asynchronous method, as a share of its budget; above 100 % it "
        "is impossible."
    )
    return Grid("The paper's times in this fleet", header, rows, note)


def _row(recipe: str, column: Mapping[str, Printed], length: Lengths) -> tuple[str, ...]:
    reached = {
        method: length.share(method, entry.time) for method, entry in column.items() if math.isfinite(entry.time)
    }
    longest = [
        max(
            ((share, method) for method, share in reached.items() if waits(method) == synchronous),
            default=None,
        )
        for synchronous in (True, False)
    ]
    return (
        recipe,
        f"{length.synchronous / ROUNDS:,.0f}",
        f"{length.asynchronous / UPLOADS:.1f}",
        f"{reached['fedavg'] * ROUNDS:.0f}" if "fedavg" in reached else "never",
        f"{reached['fedasmu'] * UPLOADS:.0f}",
        *("" if one is None else f"{100 * one[0]:.0f} % ({one[1]})" for one in longest),
    )
