"""What FedASMU decided during a run: its weights, its learned controls, its slots and what merges earned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedasmu.algorithms.fedasmu.notes import MergeNote
from fedasmu.encoding.note import of_line
from fedasmu.events import Delivered, Renewed
from fedasmu.run.result import Result

SMOOTHED = 100  # points that a line is the mean of, or a fifth of them where there are few

Points = tuple[list[float], list[float]]
Noted = Renewed | Delivered
Curve = tuple[str, type[Noted], str]  # its name, the events that have it, and the note
PANELS: tuple[Curve, ...] = (
    ("weight α of an upload", Renewed, "weight"),
    ("weight β of a fresh model", Delivered, "beta"),
    ("reward of a merge", Delivered, "reward"),
    ("slot of the request", Delivered, "slot"),
)
CONTROLS: tuple[tuple[str, tuple[Curve, ...]], ...] = (
    ("server", (("λ", Renewed, "lambda"), ("σ", Renewed, "sigma"), ("ι", Renewed, "iota"))),
    ("devices", (("γ", Delivered, "gamma"), ("υ", Delivered, "upsilon"))),
)


def draw_inside(result: Result) -> Figure | None:
    """Up to six panels over time: a dot for each decision, a line for their running mean. None for other methods."""
    if not result.has_events:
        return None
    events = [event for event in result.typed_events if isinstance(event, Noted)]
    if not any("lambda" in event.notes or "reward" in event.notes for event in events):
        return None
    decided = {title: points for title, kind, key in PANELS if (points := _points(events, kind, key))[0]}
    moved = {f"controls on the {where}: % moved": lines for where, of in CONTROLS if (lines := _moved(events, of))}
    titles = [*decided, *moved]
    if not titles:
        return None
    rows = math.ceil(len(titles) / 3)
    columns = math.ceil(len(titles) / rows)
    figure = Figure(figsize=(3.2 * columns, 2.7 * rows), layout="constrained")
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(titles))]
    for axes, (times, values) in zip(panels, decided.values(), strict=False):
        axes.plot(times, values, ".", color="#0072B2", markersize=2, alpha=0.35)
        axes.plot(*_running(times, values), color="#D55E00", linewidth=1.6)
    for axes, lines in zip(panels[len(decided) :], moved.values(), strict=True):
        for (name, points), colour in zip(lines.items(), ("#0072B2", "#D55E00", "#009E73"), strict=False):
            axes.plot(*_running(*points), color=colour, label=name, linewidth=1.6)
        axes.legend(frameon=False)
    for axes, title in zip(panels, titles, strict=True):
        axes.set(title=title, xlabel=f"{result.clock} (s)")
        axes.grid(alpha=0.25)
    return figure


def _moved(events: list[Noted], controls: Iterable[Curve]) -> dict[str, Points]:
    """How far each of the controls has moved from where it began, in per cent."""
    found = {name: _points(events, kind, key) for name, kind, key in controls}
    return {
        name: (times, [100.0 * (value / values[0] - 1.0) if values[0] else value for value in values])
        for name, (times, values) in found.items()
        if values
    }


def _points(events: list[Noted], kind: type[Noted], key: str) -> Points:
    chosen = [(event.time, _value(event, key)) for event in events if isinstance(event, kind)]
    known = [(time, value) for time, value in chosen if isinstance(value, int | float)]
    return [time for time, _ in known], [value for _, value in known]


def _value(event: Noted, key: str) -> Any:
    if isinstance(event, Delivered):
        return getattr(of_line(MergeNote, event.notes), key)
    return next(iter(event.weights), None) if key == "weight" else event.notes.get(key)


def _running(times: list[float], values: list[float]) -> Any:
    if not values:
        return [], []
    width = max(1, min(SMOOTHED, len(values) // 5))
    window = np.ones(width) / width
    return np.convolve(times, window, "valid"), np.convolve(values, window, "valid")
