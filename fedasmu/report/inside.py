"""What FedASMU decided during a run: its weights, its learned controls, its slots and what merges earned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedasmu.result import Result

SMOOTHED = 100  # points that a line is the mean of, or a fifth of them where there are few

Points = tuple[list[float], list[float]]
PANELS: tuple[tuple[str, str, str], ...] = (
    ("weight α of an upload", "version", "weight"),
    ("weight β of a fresh model", "upload", "beta"),
    ("reward of a merge", "upload", "reward"),
    ("slot of the request", "upload", "slot"),
)
CONTROLS = (("λ", "version", "lambda"), ("σ", "version", "sigma"), ("ι", "version", "iota"))
DEVICE_CONTROLS = (("γ", "upload", "gamma"), ("υ", "upload", "upsilon"))


def draw_inside(result: Result) -> Figure | None:
    """Six panels over virtual time: a dot for each decision, a line for their running mean. None for other methods."""
    events = list(result.events)
    if not any("lambda" in event or "reward" in event for event in events):
        return None
    for event in events:
        if event["event"] == "version":
            event["weight"] = next(iter(event["weights"]), None)
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
        axes.set_xlabel("virtual time (s)")
        axes.grid(alpha=0.25)
    return figure


def _relative(axes: Axes, title: str, controls: Iterable[tuple[str, str, str]], events: list[dict[str, Any]]) -> None:
    """How far the controls have moved from where they began, in per cent."""
    for (name, kind, key), colour in zip(controls, ("#0072B2", "#D55E00", "#009E73"), strict=False):
        times, values = _points(events, kind, key)
        if values:
            moved = [100.0 * (value / values[0] - 1.0) if values[0] else value for value in values]
            axes.plot(*_running(times, moved), color=colour, label=name, linewidth=1.6)
    axes.set_title(f"{title}: % moved")
    if axes.has_data():
        axes.legend(frameon=False)


def _points(events: list[dict[str, Any]], kind: str, key: str) -> Points:
    chosen = [event for event in events if event["event"] == kind and isinstance(event.get(key), int | float)]
    return [event["time"] for event in chosen], [event[key] for event in chosen]


def _running(times: list[float], values: list[float]) -> Any:
    if not values:
        return [], []
    width = max(1, min(SMOOTHED, len(values) // 5))
    window = np.ones(width) / width
    return np.convolve(times, window, "valid"), np.convolve(values, window, "valid")
