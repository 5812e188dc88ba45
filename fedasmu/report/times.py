"""The table of runs that simulated the order of events alone: who took how long, how stale, with how many bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedasmu.report.tables import Grid
from fedasmu.run.result import Result

COLUMNS = {  # of a run's summary, and by what they are divided
    "virtual s": ("virtual_seconds", 1, ",.0f"),
    "versions": ("version", 1, ",.0f"),
    "staleness": ("mean_staleness", 1, ".1f"),
    "too stale": ("stale", 1, ",.0f"),
    "lost": ("lost", 1, ",.0f"),
    "MB down": ("bytes_down", 1e6, ",.1f"),
    "MB up": ("bytes_up", 1e6, ",.1f"),
}


def times_table(runs: Mapping[str, Sequence[Result]]) -> Grid:
    """Of each method the means over its seeds."""
    rows = tuple((label, *(_mean(results, *column) for column in COLUMNS.values())) for label, results in runs.items())
    return Grid("times alone", ("method", *COLUMNS), rows, "Nothing was trained (timing_only). Means over the seeds.")


def _mean(results: Sequence[Result], key: str, unit: float, form: str) -> str:
    return format(fmean(result.summary[key] for result in results) / unit, form)
