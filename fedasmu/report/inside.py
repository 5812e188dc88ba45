"""What FedASMU decided during a run: its weights, its learned controls, its slots and what merges earned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
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
CONTROLS: tuple[Curve, ...] = (("λ", Renewed, "lambda"), ("σ", Renewed, "sigma"), ("ι", Renewed, "iota"))
DEVICE_CONTROLS: tuple[Curve, ...] = (("γ", Delivered, "gamma"), ("υ", Delivered, "upsilon"))


def draw_inside(result: Result) -> Figure | None:
    """Six panels over time: a dot for each decision, a line for their running mean. None for other methods."""
    if not result.has_events:
        return None
    events = [event for event in result.typed_events if isinstance(event, Noted)]
    if not any("lambda" in event.notes or "reward" in event.notes for event in events):
        return None
    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    for axes, (title, kind, key) in zip(panels, PANELS, strict=False):
        times, values = _points(events, kind, key)
        axes.plot(times, values, ".", color="#0072B2", markersize=2, alpha=0.35)
        axes.plot(*_running(times, values), color="#D55E00", linewidth=1.6)
        axes.set_title(title)
    _relative(panels[4], "controls on the server", CONTROLS, events)
    _relative(panels[5], "controls on the devices", DEVICE_CONTROLS, events)
    for axes in panels:
        axes.set_xlabel(f"{result.clock} (s)")
        axes.grid(alpha=0.25)
    return figure


def _relative(axes: Axes, title: str, controls: Iterable[Curve], events: list[Noted]) -> None:
    """How far the controls have moved from where they began, in per cent."""
    for (name, kind, key), colour in zip(controls, ("#0072B2", "#D55E00", "#009E73"), strict=False):
        times, values = _points(events, kind, key)
        if values:
            moved = [100.0 * (value / values[0] - 1.0) if values[0] else value for value in values]
            axes.plot(*_running(times, moved), color=colour, label=name, linewidth=1.6)
    axes.set_title(f"{title}: % moved")
    if axes.has_data():
        axes.legend(frameon=False)


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
