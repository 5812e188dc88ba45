"""Leagues as pictures, each as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure

from fedasmu.report.latex import target_of
from fedasmu.report.league import League, Standing
from fedasmu.study.variants import GROUPS, slug

# Okabe and Ito's colours, which people with any colour vision can tell apart; yellow is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
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
    style = looks(list(dict.fromkeys(standing.label for league in leagues for standing in league.standings)))
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for league in leagues:
            name = slug(league.title)
            written += _save(curves(league, style), out / f"curves-{name}")
            if league.targets:
                written += _save(times(league, style), out / f"time-to-target-{name}")
            for group in ("ablation", "slots"):
                members = [standing for standing in league.standings if standing.label in GROUPS[group]]
                if len(members) > 2 and any(standing.label != "fedasmu" for standing in members[1:]):
                    written += _save(parts(league, members, style), out / f"{group}-{name}")
        if len(leagues) > 1:
            written += _save(environments(leagues, style), out / "environments")
    return written


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    figure.savefig(files[0], dpi=160)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def curves(league: League, style: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy over virtual time, with a band of one standard deviation over the seeds."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    ends, top = [], 0.0
    for standing in sorted(league.standings, key=lambda one: -one.accuracy):
        time, mean, spread = standing.curve()
        ends.append(time[-1])
        top = max(top, float(mean.max()))
        axes.plot(
            time, mean, linewidth=1.5, label=f"{standing.label}  {standing.accuracy:.3f}", **style[standing.label]
        )
        if len(standing.runs) > 1:
            axes.fill_between(
                time, mean - spread, mean + spread, color=style[standing.label]["color"], alpha=0.12, lw=0
            )
    for target in league.targets:
        axes.axhline(target, color="#999999", linewidth=0.6, zorder=0)
        axes.annotate(
            f"{target:g}",
            (1.0, target),
            (2, -3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=7,
            color="#777777",
        )
    # A method that waits for its slowest device takes many times as long: beyond this the others show nothing new.
    shown = min(max(ends), 3.0 * sorted(ends)[len(ends) // 2])
    axes.set(
        xlim=(0, shown),
        ylim=(0, min(1.0, top * 1.08)),
        xlabel="virtual time (s)",
        ylabel="accuracy",
        title=league.title,
    )
    axes.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside right upper", frameon=False, title="final accuracy", alignment="left", handlelength=2.4)
    return figure


def times(league: League, style: dict[str, dict[str, Any]]) -> Figure:
    """Virtual time to each target: a panel a target, a bar a method, the range over the seeds as a line."""
    targets, rows = league.targets, list(reversed(league.standings))
    figure = Figure(figsize=(2.2 + 2.6 * len(targets), 0.9 + 0.27 * len(rows)), layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), sharey=True, squeeze=False)[0], targets, strict=True):
        reaches = [standing.reach(target) for standing in rows]
        longest = max([reach.median for reach in reaches if math.isfinite(reach.median)], default=1.0)
        for place, (standing, reach) in enumerate(zip(rows, reaches, strict=True)):
            of_seeds = "" if reach.reached in (0, reach.seeds) else f" ({reach.reached} of {reach.seeds})"
            if math.isfinite(reach.median):
                axes.barh(place, reach.median, height=0.7, color=style[standing.label]["color"])
                axes.text(
                    reach.median + 0.02 * longest, place, f"{reach.median:,.0f}{of_seeds}", va="center", fontsize=7
                )
            else:
                axes.text(0.02 * longest, place, f"not reached{of_seeds}", va="center", fontsize=7, color="#777777")
        axes.set(xlim=(0, 1.28 * longest), title=f"to {target:g}", xlabel="virtual time (s)")
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks(range(len(rows)), [standing.label for standing in rows])
        axes.tick_params(axis="y", length=0)
    figure.suptitle(league.title, x=0.01, ha="left", fontsize=10)
    return figure


def parts(league: League, members: Sequence[Standing], style: dict[str, dict[str, Any]]) -> Figure:
    """What each part of a method is worth: final accuracy of all seeds, and time to the highest target reached."""
    figure = Figure(figsize=(7.2, 1.3 + 0.36 * len(members)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    reached = [target for target in league.targets if any(math.isfinite(one.reach(target).median) for one in members)]
    target = max(reached, default=None)
    rows = list(reversed(members))
    for place, standing in enumerate(rows):
        colour = style[standing.label]["color"]
        values = standing.values("accuracy")
        left.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.5)
        left.plot([standing.accuracy], [place], "|", color=colour, markersize=16, markeredgewidth=2)
        left.annotate(
            f"{standing.accuracy:.3f}",
            (standing.accuracy, place),
            (0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
        if target is not None and math.isfinite(median := standing.reach(target).median):
            right.barh(place, median, height=0.55, color=colour)
            right.annotate(
                f"{median:,.0f}", (median, place), (3, 0), textcoords="offset points", va="center", fontsize=7
            )
    left.set_yticks(range(len(rows)), [standing.label for standing in rows])
    left.set(xlabel="accuracy (dots: seeds, bar: mean)", ylim=(-0.6, len(rows) - 0.3))
    left.margins(x=0.15)
    left.grid(axis="x", alpha=0.25, linewidth=0.5)
    right.set(xlabel="no target was reached" if target is None else f"virtual time to {target:g} (s)")
    right.margins(x=0.2)
    right.locator_params(axis="x", nbins=4)
    figure.suptitle(league.title, x=0.01, ha="left", fontsize=10)
    return figure


def environments(leagues: Sequence[League], style: dict[str, dict[str, Any]]) -> Figure:
    """The methods across tasks or environments: accuracy above, time to the target below."""
    labels = [label for label in style if sum(league.named(label) is not None for league in leagues) > 1] or list(style)
    figure = Figure(figsize=(max(5.5, 1.6 + 1.5 * len(leagues)), 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for place, label in enumerate(labels):
        shift = 0.7 * ((place + 0.5) / len(labels) - 0.5)
        for column, league in enumerate(leagues):
            if (standing := league.named(label)) is None:
                continue
            named = label if all(league.named(label) is None for league in leagues[:column]) else None
            look = {"color": style[label]["color"], "marker": "osD^vPX"[place // len(COLOURS) % 7], "markersize": 5}
            error = 0.0 if math.isnan(standing.spread) else standing.spread
            above.errorbar(column + shift, standing.accuracy, error, label=named, elinewidth=1, linestyle="", **look)
            target = target_of(league)
            if target is not None and math.isfinite(median := standing.reach(target).median):
                below.plot(column + shift, median, linestyle="", **look)
    above.set(ylabel="accuracy")
    below.set(ylabel="virtual time to target (s)", yscale="log")
    ticks = [_tick(league) for league in leagues]
    below.set_xticks(range(len(leagues)), ticks, fontsize=7)
    for axes in (above, below):
        axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _tick(league: League) -> str:
    target = target_of(league)
    title = league.title.replace(", ", "\n").replace(" on ", "\non ")
    return title if target is None else f"{title}\ntarget {target:g}"
