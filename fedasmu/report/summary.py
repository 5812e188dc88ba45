"""One run in a table, and its curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fedasmu.errors import printable
from fedasmu.report.overfitting import overfit
from fedasmu.report.standing import guarded, measured
from fedasmu.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(result: Result) -> Table:
    run = result.summary
    title = escape(printable(_title(run)))
    view = Table(title=title, show_header=False, title_justify="left")
    view.add_column(style="bold")
    view.add_column(justify="right")
    for label, value in lines(result):
        view.add_row(label, value)
    return view


def _title(run: Mapping[str, Any]) -> str:
    what = "times alone" if run["data"] == "none" else f"on {run['data']}"
    return f"{run['method']} {what}, seed {run['seed']}"


def lines(result: Result) -> list[tuple[str, str]]:
    run, lines, name = result.summary, [], result.metric.name
    how, _, what = measured(result).partition(" ")  # by the devices, on held-out data
    if not result.is_of_times_alone:
        lines += [
            (f"{name}{_averaged(len(result.settled()))}", result.metric.shown(result.score)),
            *([(f"  measured {how}", what)] if what else []),
            (f"last {name}", result.metric.shown(result.last_score)),
            (f"best {name}{'' if result.metric.larger else ' (the least)'}", result.metric.shown(result.best_score)),
            *_overfitting(result),
            *((f"{result.clock} to {target}", _seconds(seconds)) for target, seconds in run["time_to"].items()),
        ]
    return [
        *lines,
        (result.clock, _seconds(run["virtual_seconds"])),
        ("versions of the global model", f"{run['version']:,}"),
        ("uploads received", f"{run['uploads']:,}"),
        ("  discarded as too stale / refused", f"{run['stale']:,} / {run['refused']:,}"),
        *_refusals(result),
        ("tasks lost with their device", f"{run['lost']:,}"),
        ("mean staleness (1 = fresh)", f"{run['mean_staleness']:.2f}"),
        ("sent to devices / to the server", f"{_bytes(run['bytes_down'])} / {_bytes(run['bytes_up'])}"),
        ("wall time", f"{run['wall_seconds']:.1f} s"),
    ]


def _averaged(evaluations: int) -> str:
    return f" (mean of the last {evaluations} evaluations)" if evaluations > 1 else ""


def _overfitting(result: Result) -> list[tuple[str, str]]:
    found = overfit(result)
    if found is None:
        return []
    label = f"[yellow]  overfits after {found.uploads:,}: local.weight_decay?"
    return [(label, f"test loss {found.least:.2f}, then {found.last:.2f}")]


def _refusals(result: Result) -> list[tuple[str, str]]:
    refused, uploads = result.summary["refused"], result.summary["uploads"]
    asked = "beyond guard.refuse, or diverged" if guarded(result) else "did training diverge"
    return [(f"[yellow]  refused: {asked} (local.lr)?", f"{refused / uploads:.0%} of all")] if refused else []


def _seconds(value: float | None) -> str:
    return "not reached" if value is None else f"{value:,.0f} s"


def _bytes(value: int) -> str:
    return f"{value / 1e6:,.1f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"


def draw_curve(result: Result, path: Path) -> Path:
    result.plot().savefig(path, dpi=120)
    return path


def curve(result: Result) -> Figure:
    """The metric over time."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # a name is a text, whatever is in it
        return _drawn(result)


def _drawn(result: Result) -> Figure:
    from matplotlib.figure import Figure

    run = result.summary
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(result.curve["time"], result.scores, color="#2563eb", linewidth=1.6)
    axes.margins(y=0.12)  # room for the labels
    for target, seconds in run["time_to"].items():
        if seconds is not None:
            axes.plot([seconds], [float(target)], "o", color="#dc2626", markersize=4)
            # Before it gets there a curve is on one side of the target, and later on the other: a label is beside it.
            late = seconds > 0.6 * result.curve["time"][-1]
            above = late == result.metric.larger
            axes.annotate(
                f"{target} at {seconds:,.0f} s",
                (seconds, float(target)),
                (-6 if late else 6, 5 if above else -5),
                textcoords="offset points",
                ha="right" if late else "left",
                va="bottom" if above else "top",
            )
    axes.set(
        xlabel=f"{result.clock} (s)",
        ylabel=_judged(result),
        title=_title(run),
    )
    axes.grid(alpha=0.3)
    return figure


def _judged(result: Result) -> str:
    """The metric, and of which examples it is."""
    name, how = result.metric.name, measured(result)
    return f"{name}, measured {how}" if how else f"test {name}"
