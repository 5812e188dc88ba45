"""The curves and the distributions of the page, as columns for its plotting library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.report.league import League
from fedasmu.report.page.tasks import Tasks

Floats = NDArray[np.float64]
Sample = dict[str, Floats]  # of one method: a value for each upload that arrived, over all seeds
POINTS = 120  # of a curve
BINS = 25
ENOUGH = 3  # uploads in a bin before their mean is shown

AXES: dict[str, Callable[[dict[str, Floats]], Floats]] = {
    "{clock} (s)": lambda curve: curve["time"],
    "uploads received": lambda curve: curve["uploads"],
    "sent in both directions (MB)": lambda curve: (curve["bytes_down"] + curve["bytes_up"]) / 1e6,
}


def curves(league: League) -> list[dict[str, Any]]:
    """The metric over time, uploads and bytes: each method's mean over its seeds, lowest and highest."""
    return [{"label": label.format(clock=league.clock), **_curves(league, along)} for label, along in AXES.items()]


def _curves(league: League, along: Callable[[dict[str, Floats]], Floats]) -> dict[str, Any]:
    ends = [min(along(run.result.curve)[-1] for run in standing.runs) for standing in league.standings]
    # A method that ends early has points enough, too: each one's own grid is part of the common one.
    x = np.unique(np.concatenate([np.linspace(0.0, end, POINTS) for end in ends]))
    series = []
    for standing, end in zip(league.standings, ends, strict=True):
        each = [np.interp(x, along(run.result.curve), run.result.scores) for run in standing.runs]
        start = max(along(run.result.curve)[0] for run in standing.runs)  # not 0 where the devices measure
        known = np.where((start <= x) & (x <= end), np.stack(each), np.nan)
        series.append([numbers(known.mean(0)), numbers(known.min(0)), numbers(known.max(0))])
    return {"x": numbers(x, 7), "series": series, "common": float(min(ends))}


def numbers(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """For JSON: a few digits are all that a picture shows, and NaN becomes null."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def sample(seeds: Sequence[Tasks]) -> Sample:
    def column(name: str) -> Floats:
        return np.concatenate([one.columns[name][one.delivered].astype(float) for one in seeds])

    return {
        **{name: column(name) for name in ("staleness", "alpha", "beta", "reward")},
        "moment": np.concatenate([one.moment[one.delivered] for one in seeds]),
        "progress": np.concatenate([np.linspace(0.0, 1.0, int(one.delivered.sum())) for one in seeds]),
    }


def distributions(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    ages = _edges([one["staleness"] for one in samples], whole=True)
    weights = _edges([one["alpha"] for one in samples])
    shares = np.linspace(0.0, 1.0, BINS + 1)

    def each(values: Callable[[Sample], list[float | None]], style: str = "") -> list[dict[str, Any]]:
        found = ((place, values(one)) for place, one in enumerate(samples))
        return [
            {"method": place, "style": style, "y": y} for place, y in found if any(value is not None for value in y)
        ]

    def when_asked(first: bool) -> Callable[[Sample], list[float | None]]:
        return lambda one: _shares(
            one["moment"][(one["progress"] < 1 / 3) if first else (one["progress"] > 2 / 3)], shares
        )

    return [
        {
            "title": "Staleness",
            "note": "How many versions behind an upload was when it arrived; 1 is fresh.",
            "x": numbers(ages),
            "steps": True,
            "labels": ["staleness", "share of uploads"],
            "lines": each(lambda one: _shares(one["staleness"], ages)),
        },
        {
            "title": "Weight α of an upload",
            "note": "How much of an upload went into the next version.",
            "x": numbers(weights),
            "steps": True,
            "labels": ["α", "share of uploads"],
            "lines": each(lambda one: _shares(one["alpha"], weights)),
        },
        {
            "title": "Weight against staleness",
            "note": "The mean α of the uploads that were so many versions behind.",
            "x": numbers(_middles(ages)),
            "labels": ["staleness", "mean α"],
            "lines": each(lambda one: _means(one["alpha"], one["staleness"], ages)),
        },
        {
            "title": "Weight β of a fresh model",
            "note": "How much of the fresh model a device merged into its own.",
            "x": numbers(shares),
            "steps": True,
            "labels": ["β", "share of merges"],
            "lines": each(lambda one: _shares(one["beta"], shares)),
        },
        {
            "title": "Learned request slots",
            "note": "When devices ask for a fresh model: dashed in the first third of the run, solid in the last.",
            "x": numbers(shares),
            "steps": True,
            "labels": ["share of the training done", "share of requests"],
            "lines": each(when_asked(first=True), "dashed") + each(when_asked(first=False)),
        },
        {
            "title": "What a merge earned",
            "note": "The mean reward: by how much merging the fresh model lowered the device's loss.",
            "x": numbers(_middles(shares)),
            "labels": ["share of the training done", "mean reward"],
            "lines": each(lambda one: _means(one["reward"], one["moment"], shares)),
        },
    ]


def _edges(columns: Sequence[Floats], whole: bool = False) -> Floats:
    """Bins from 0 to the largest value; of whole numbers, each bin holds the same number of them."""
    values = np.concatenate(columns)
    highest = float(np.nanmax(values, initial=0.0)) or 1.0
    if not whole:
        return np.linspace(0.0, highest, BINS + 1)
    width = max(1, int(np.ceil(highest / (2 * BINS))))
    return np.arange(0.5, highest + width + 0.5, width)


def _middles(edges: Floats) -> Floats:
    return (edges[:-1] + edges[1:]) / 2


def _shares(values: Floats, edges: Floats) -> list[float | None]:
    counts = np.histogram(values[np.isfinite(values)], edges)[0]
    return numbers(counts / counts.sum()) if counts.any() else [None] * len(counts)


def _means(values: Floats, by: Floats, edges: Floats) -> list[float | None]:
    known = np.isfinite(values) & np.isfinite(by)
    counts = np.histogram(by[known], edges)[0]
    sums = np.histogram(by[known], edges, weights=values[known])[0]
    return numbers(np.where(counts >= ENOUGH, sums / np.maximum(counts, 1), np.nan))
