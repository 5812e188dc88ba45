"""Leagues as pictures, each as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from fedasmu.algorithms import GROUPS
from fedasmu.report.inside import draw_inside
from fedasmu.report.labels import shown, slug
from fedasmu.report.league import League, clock_of, target_of
from fedasmu.report.palette import COLOURS, DASHES, order
from fedasmu.report.standing import Floats, Standing

SECONDS = EngFormatter(sep="")  # 20k
MANY = 10  # with more methods than this, the curves leave out the variants of FedASMU: they have figures of their own
DENSE = 100  # evaluations of a run; with fewer, a running mean over so short a time knows one or two of them
VARIANTS = {label for group in ("ablation", "slots") for label in GROUPS[group] if label.startswith("fedasmu-")}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "text.parse_math": False,  # a label is a text, whatever is in it
    "svg.hashsalt": "fedasmu",  # the same runs give the same file
}


def looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of each method, the same in every figure of a report."""
    return {
        label: {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}
        for place, label in enumerate(labels)
    }


def draw(leagues: Sequence[League], out: Path) -> list[Path]:
    """All figures that these leagues give."""
    style = looks(order(leagues))
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for league in leagues:
            name = slug(league.title)
            written += _save(curves(league, style), out / f"curves-{name}")
            if league.targets:
                written += _save(times(league), out / f"time-to-target-{name}")
            for standing in (one for one in league.standings if one.label not in VARIANTS):
                if (figure := draw_inside(standing.runs[0].result)) is not None:
                    written += _save(figure, out / f"inside-{slug(standing.label)}-{name}")
            for group in ("ablation", "slots"):
                members = [one for label in GROUPS[group] if (one := league.named(label)) is not None]
                if sum(one.label in VARIANTS for one in members) > 1:
                    written += _save(parts(league, members), out / f"{group}-{name}")
        if len(leagues) > 1:
            written += _save(environments(leagues, style), out / "environments")
    return written


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    figure.savefig(files[0], dpi=160)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def curves(league: League, style: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy over virtual time; where few methods leave room, with a band of one standard deviation."""
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    drawn = [one for one in league.standings if len(league.standings) <= MANY or one.label not in VARIANTS]
    ends, top, banded = [], 0.0, len(drawn) <= MANY
    for standing in sorted(drawn, key=lambda one: -league.metric.better(one.score)):
        first, look = standing is league.reference, style[standing.label]
        time, mean, spread = _line(standing)
        ends.append(float(time[-1]))
        top = max(top, float((mean + spread if banded else mean).max()))
        label = f"{league.metric.shown(standing.score, 3)}  {shown(standing.label)}"
        axes.plot(time, mean, linewidth=2.4 if first else 1.3, zorder=4 if first else 3, label=label, **look)
        if len(standing.runs) > 1 and banded:
            axes.fill_between(time, mean - spread, mean + spread, color=look["color"], alpha=0.13, linewidth=0)
    for target in league.targets:
        axes.axhline(target, color="#999999", linewidth=0.6, zorder=0)
    # A method that waits for its slowest device takes many times as long; all of it would press the others together.
    right = min(max(ends), 3.0 * min(ends))
    axes.set(xlim=(0, right), title=league.title)
    # They differ at the end; how all of them rise from chance can be left out.
    low = min(standing.score_at(right) for standing in drawn)
    if league.metric.is_share:
        axes.set(ylim=(max(0.0, low - max(top - low, 0.2)), min(1.0, top + 0.03)))
    running = " (running mean)" if any(one.evaluations >= DENSE for one in drawn) else ""
    axes.set(xlabel=f"{league.clock} (s)", ylabel=f"{league.metric.name}{running}")
    axes.xaxis.set_major_formatter(SECONDS)
    axes.grid(alpha=0.25, linewidth=0.5)
    figure.legend(
        loc="outside right upper",
        frameon=False,
        title=f"final {league.metric.name}",
        alignment="left",
        handlelength=2.2,
    )
    return figure


def _line(standing: Standing) -> tuple[Floats, Floats, Floats]:
    """Time, mean and spread: of the evaluations as they are; where these are many, of their running mean."""
    if standing.evaluations < DENSE:
        return standing.measured()
    time, mean, spread = standing.curve()
    return time, smooth(mean), smooth(spread)


def smooth(values: Floats, width: int = 9) -> Floats:
    """A running mean over 9 of 400 points; at the ends over those that there are."""
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")


def times(league: League) -> Figure:
    """The time to each target: a panel a target, a bar a method."""
    targets, rows = league.targets, list(reversed(league.standings))
    figure = Figure(figsize=(1.8 + 2.5 * len(targets), 1.0 + 0.25 * len(rows)), layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), sharey=True, squeeze=False)[0], targets, strict=True):
        _bars(axes, rows, target, league.reference)
        axes.set(title=f"to {target:g}", xlabel=f"{league.clock} (s)")
    figure.suptitle(league.title, x=0.01, ha="left", fontsize=10)
    return figure


def _bars(axes: Any, rows: Sequence[Standing], target: float, reference: Standing) -> None:
    reaches = [standing.reach(target) for standing in rows]
    longest = max([reach.median for reach in reaches if math.isfinite(reach.median)], default=1.0) or 1.0
    for place, (standing, reach) in enumerate(zip(rows, reaches, strict=True)):
        reached = math.isfinite(reach.median)
        text = f"{reach.median:,.0f}" if reached else "not reached"
        text += "" if reach.reached in (0, reach.seeds) else f" ({reach.reached} of {reach.seeds} seeds)"
        width = reach.median if reached else 0.0
        axes.barh(place, width, height=0.7, color=COLOURS[0] if standing is reference else "#A9B4C2")
        axes.text(width + 0.02 * longest, place, text, va="center", fontsize=7, color="black" if reached else "#777777")
    axes.set(xlim=(0, 1.35 * longest), ylim=(-0.6, len(rows) - 0.4))
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(SECONDS)
    if not any(math.isfinite(reach.median) for reach in reaches):
        axes.set_xticks([])
    axes.set_yticks(range(len(rows)), [shown(standing.label) for standing in rows])
    axes.tick_params(axis="y", length=0)


def parts(league: League, members: Sequence[Standing]) -> Figure:
    """What each part of a method is worth: the final score of every seed, and the time to a target."""
    figure = Figure(figsize=(7.2, 1.2 + 0.36 * len(members)), layout="constrained")
    target, rows = target_of(league, members), list(reversed(members))
    panels = figure.subplots(1, 1 if target is None else 2, sharey=True, squeeze=False)[0]
    if target is not None:
        _bars(panels[1], rows, target, members[0])
        panels[1].set(xlabel=f"{league.clock} to {target:g} (s)")
    for place, standing in enumerate(rows):
        values, colour = standing.scores, COLOURS[0] if place == len(rows) - 1 else "#5B6878"
        panels[0].plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.5)
        panels[0].plot([standing.score], [place], "|", color=colour, markersize=14, markeredgewidth=2)
        above = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
        panels[0].annotate(league.metric.shown(standing.score, 3), (standing.score, place), (0, 8), **above)
    panels[0].set_yticks(range(len(rows)), [shown(standing.label) for standing in rows])
    panels[0].set(xlabel=f"{league.metric.name} (dots: seeds, stroke: mean)", ylim=(-0.6, len(rows) - 0.2))
    panels[0].margins(x=0.15)
    panels[0].grid(axis="x", alpha=0.25, linewidth=0.5)
    figure.suptitle(league.title, x=0.01, ha="left", fontsize=10)
    return figure


def environments(leagues: Sequence[League], style: dict[str, dict[str, Any]]) -> Figure:
    """The methods across tasks or environments: the score above; below, where there is any, the time to a target."""
    waits = [_waits(league) for league in leagues]
    size = max(5.5, 2.4 + 1.3 * len(leagues)), max(4.8, 0.2 * len(style))  # the legend needs a line for each
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2 if any(waits) else 1, 1, sharex=True, squeeze=False)[:, 0]
    for place, label in enumerate(style):
        shift = 0.7 * ((place + 0.5) / len(style) - 0.5)
        look = {"color": style[label]["color"], "marker": "osD^"[place // len(COLOURS) % 4], "linestyle": ""}
        for column, league in enumerate(leagues):
            if (standing := league.named(label)) is None:
                continue
            spread = 0.0 if math.isnan(standing.spread) else standing.spread
            panels[0].errorbar(column + shift, standing.score, spread, markersize=5, elinewidth=1, **look)
            if label in waits[column]:
                panels[1].plot(column + shift, waits[column][label], markersize=5, **look)
        panels[0].plot([], [], label=shown(label), markersize=5, **look)
    panels[0].set(ylabel=", ".join(dict.fromkeys(league.metric.name for league in leagues)))
    if any(waits):
        panels[1].set(ylabel=f"{clock_of(leagues)} to target (s)", yscale="log")
        for which in (panels[1].yaxis.set_major_formatter, panels[1].yaxis.set_minor_formatter):
            which(SECONDS)
    panels[-1].set_xticks(range(len(leagues)), _ticks(leagues), fontsize=8)
    panels[-1].set_xlim(-0.5, len(leagues) - 0.5)
    for axes in panels:
        axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _waits(league: League) -> dict[str, float]:
    """The time to the target of each method that got there, and not at once: its axis is logarithmic."""
    target = target_of(league)
    found = {} if target is None else {one.label: one.reach(target).median for one in league.standings}
    return {label: median for label, median in found.items() if 0.0 < median < math.inf}


def _ticks(leagues: Sequence[League]) -> list[str]:
    """The titles, without what all of them begin with, and the target of each."""
    heads = {league.title.partition(", ")[0] for league in leagues}
    names = [league.title.partition(", ")[2] if len(heads) == 1 else league.title for league in leagues]
    return [
        name.replace(" on ", "\n").replace(", ", "\n") + _target(league)
        for name, league in zip(names, leagues, strict=True)
    ]


def _target(league: League) -> str:
    if (target := target_of(league)) is None:
        return ""
    reached = any(math.isfinite(one.reach(target).median) for one in league.standings)
    return f"\ntarget {target:g}" + ("" if reached else "\nnot reached")
