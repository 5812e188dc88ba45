"""One method on one task: its runs, and what is worked out over their seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.errors import printable
from fedasmu.measure import Metric
from fedasmu.run.result import Result, flat
from fedasmu.section import Section
from fedasmu.settings.config import WITHOUT_INFLUENCE, Config

# A key that is younger than a run leaves things as they were where it is not given; a method's own may not.
DEFAULTS = flat(
    {
        name: field.default.model_dump(mode="json", exclude_none=True)
        for name, field in Config.model_fields.items()
        if isinstance(field.default, Section)
    }
)
COMPUTED_BY = {"engine", "instructions", "device", "per_gpu"}  # what decides last digits alone, if anything
NOT_THE_TASK = {"seed", *COMPUTED_BY, *WITHOUT_INFLUENCE}
Floats = NDArray[np.float64]


def measured(result: Result) -> str:
    """By whom or on what, where it was not by the server on the test data."""
    if result.summary.get(f"{result.metric.name}_by") == "devices":
        return "by the devices"
    return "on held-out training data" if flat(result.config).get("data.held_out") else ""


def guarded(result: Result) -> bool:
    """Whether a guard may have refused uploads: then they are no sign that training diverged."""
    return flat(result.config).get("guard.refuse") is not None


@dataclass(frozen=True)
class Run:
    result: Result
    label: str

    @cached_property
    def settings(self) -> dict[str, Any]:
        table = DEFAULTS | {printable(key): value for key, value in flat(self.result.config).items()}
        shown = {key: printable(value) if isinstance(value, str) else value for key, value in table.items()}
        # Of a file its digest counts, not where it lay.
        return {key: value for key, value in shown.items() if f"{key}_sha256" not in shown}

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @cached_property
    def task(self) -> tuple[tuple[str, str], ...]:
        """What was asked of it, on the data that were really there: a part of them, or a stand-in, is another task."""
        there = self.result.summary.get("data", "none")  # none: nothing was trained
        read = {} if there == "none" else {"data.name": printable(str(there))}
        others = {key: value for key, value in self.settings.items() if not key.startswith(("algorithm.", "local."))}
        asked = {key: value for key, value in others.items() if key not in NOT_THE_TASK}
        return tuple(sorted((key, str(value)) for key, value in {**asked, **read}.items()))

    def has_numbers_of(self, other: Run) -> bool:
        """Whether its curve is the same."""
        mine, theirs = ((run.result.curve["time"], run.result.scores) for run in (self, other))
        return all(map(np.array_equal, mine, theirs))


@dataclass(frozen=True)
class Reach:
    """When a method reached a target: the median over its seeds, where one that never did counts as infinity."""

    median: float
    reached: int
    seeds: int


@dataclass(frozen=True)
class Standing:
    """One method on one task, over its seeds."""

    label: str
    runs: tuple[Run, ...]

    def values(self, key: str) -> list[float]:
        return [float(run.result.summary[key]) for run in self.runs]

    def mean(self, key: str) -> float:
        return statistics.fmean(self.values(key))

    @cached_property
    def scores(self) -> list[float]:
        """From the curves, not the summaries: an older run counts by the same definition."""
        return [run.result.score for run in self.runs]

    @property
    def metric(self) -> Metric:
        """The same of all runs: what they are judged by is part of the task."""
        return self.runs[0].result.metric

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def last_score(self) -> float:
        return statistics.fmean(run.result.last_score for run in self.runs)

    def score_at(self, time: float) -> float:
        return statistics.fmean(run.result.score_at(time) for run in self.runs)

    @property
    def best_score(self) -> float:
        return statistics.fmean(run.result.best_score for run in self.runs)

    @property
    def spread(self) -> float:
        """The standard deviation of the final score over the seeds; NaN for a single one."""
        return statistics.stdev(self.scores) if len(self.runs) > 1 else math.nan

    @property
    def discarded(self) -> float:
        return self.mean("stale") + self.mean("refused")

    @property
    def megabytes(self) -> float:
        return (self.mean("bytes_down") + self.mean("bytes_up")) / 1e6

    @cached_property
    def fresh_megabytes(self) -> float:
        """What the fresh models that devices ask for in the middle of their training add to the downloads."""
        return statistics.fmean(run.result.fresh_bytes for run in self.runs) / 1e6

    def megabytes_to(self, target: float) -> float:
        """Sent in both directions until the target was reached: the median over the seeds, infinity if never."""
        sent = []
        for run in self.runs:
            curve = run.result.curve
            reached = self.metric.reached(run.result.scores, target)
            sent.append(
                float(curve["bytes_down"][reached[0]] + curve["bytes_up"][reached[0]]) / 1e6
                if len(reached)
                else math.inf
            )
        return statistics.median(sent)

    def reach(self, target: float) -> Reach:
        times = [run.result.time_to(target) for run in self.runs]
        finite = [math.inf if time is None else time for time in times]
        return Reach(statistics.median(finite), sum(map(math.isfinite, finite)), len(finite))

    def curve(self, points: int = 400) -> tuple[Floats, Floats, Floats]:
        """Virtual time, mean and standard deviation of the score, as far as all seeds go."""
        curves = [(run.result.curve["time"], run.result.scores) for run in self.runs]
        end = min(time[-1] for time, _ in curves)
        start = min(max(time[0] for time, _ in curves), end)  # not 0 where the devices measure
        times = np.linspace(start, end, points)
        # Between two evaluations the last one stands: nothing better is known.
        held = np.stack(
            [scores[np.maximum(np.searchsorted(time, times, side="right") - 1, 0)] for time, scores in curves]
        )
        return times, *_over_seeds(held)

    @property
    def evaluations(self) -> int:
        """As many as all seeds have."""
        return min(len(run.result.scores) for run in self.runs)

    def measured(self) -> tuple[Floats, Floats, Floats]:
        """A point for each evaluation: the first of all seeds at the mean of its times, then the second, and so on."""
        times = [run.result.curve["time"][: self.evaluations] for run in self.runs]
        scores = [run.result.scores[: self.evaluations] for run in self.runs]
        return np.mean(times, axis=0), *_over_seeds(np.stack(scores))


def _over_seeds(scores: Floats) -> tuple[Floats, Floats]:
    """Their mean and standard deviation; a single one has none."""
    return scores.mean(axis=0), scores.std(axis=0, ddof=1 if len(scores) > 1 else 0)


def paired(one: Standing, other: Standing) -> list[tuple[Result, Result]]:
    """Of the seeds that both were run on: these met the same split, fleet and initial weights."""
    there = {run.seed: run.result for run in other.runs}
    return [(run.result, there[run.seed]) for run in one.runs if run.seed in there]
