"""Where does asynchrony pay? A grid of how unequal the devices are, how many work at once, and how skewed the data are.

At every place the best synchronous and the best asynchronous method are compared at equal virtual time. The picture has
a panel for each skew; a place shows its winner and by how many points it is ahead of the best of the other kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedasmu.algorithms import named
from fedasmu.report.league import League
from fedasmu.report.standing import Standing
from fedasmu.report.tables import Grid
from fedasmu.study.studies import FLIGHTS, SIGMAS, SKEWS, Part, place_of


@dataclass(frozen=True)
class Place:
    sigma: float
    flight: int
    skew: float
    winner: str
    margin: float  # points by which the best asynchronous method is ahead of the best synchronous one
    seconds: float  # when they are compared


def places(found: Mapping[Part, League]) -> list[Place]:
    """The places where both kinds were run."""
    return [place for part, league in found.items() if (place := _place(part, league)) is not None]


def _place(part: Part, league: League) -> Place | None:
    time = league.common_time
    best: dict[bool, Standing] = {}
    for standing in league.standings:
        waits = _waits(standing)
        if waits not in best or standing.score_at(time) > best[waits].score_at(time):
            best[waits] = standing
    if len(best) < 2:
        return None
    margin = 100 * (best[False].score_at(time) - best[True].score_at(time))
    return Place(*place_of(part), best[margin < 0].label, margin, time)


def _waits(standing: Standing) -> bool:
    """Whether the method is synchronous: the server waits for all whom it started."""
    return named(str(standing.runs[0].result.config["algorithm"]["name"])).kind == "synchronous"


def table(found: list[Place]) -> Grid:
    rows = tuple(
        (
            f"sigma {one.sigma:g}",
            str(one.flight),
            f"{one.skew:g}",
            one.winner,
            f"{one.margin:+.1f}",
            f"{one.seconds:,.0f}",
        )
        for one in found
    )
    note = (
        "At equal virtual time, when the quickest method has spent its uploads. Points: the best asynchronous method "
        "minus the best synchronous one, so below 0 waiting pays. sigma: of the logarithm of the devices' times."
    )
    return Grid("Where asynchrony pays", ("devices", "in flight", "Dirichlet", "winner", "points", "at s"), rows, note)


def draw(found: list[Place], path: Path) -> None:
    import matplotlib
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    from fedasmu.report.figures import STYLE

    largest = max([1.0, *(abs(one.margin) for one in found)])
    colours = {"cmap": "RdBu", "norm": TwoSlopeNorm(0.0, -largest, largest)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(SKEWS) + 0.8, 3.4), layout="constrained")
        panels = figure.subplots(1, len(SKEWS), sharey=True)
        for axes, skew in zip(panels, SKEWS, strict=True):
            here = {(one.sigma, one.flight): one for one in found if one.skew == skew}
            margins = [[here[s, f].margin if (s, f) in here else float("nan") for s in SIGMAS] for f in FLIGHTS]
            shown = axes.imshow(margins, origin="lower", aspect="auto", **colours)
            for (sigma, flight), one in here.items():
                text, dark = f"{one.winner}\n{one.margin:+.1f}", abs(one.margin) > 0.6 * largest
                at = SIGMAS.index(sigma), FLIGHTS.index(flight)
                axes.text(*at, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
            axes.set_xticks(range(len(SIGMAS)), [f"{sigma:g}" for sigma in SIGMAS])
            axes.set_yticks(range(len(FLIGHTS)), [str(flight) for flight in FLIGHTS])
            axes.set_title(f"Dirichlet {skew:g}")
            axes.set_xlabel("how unequal the devices are (sigma)")
        panels[0].set_ylabel("devices in flight")
        figure.colorbar(shown, ax=panels, label="asynchronous ahead by (points)")
        figure.savefig(path, dpi=150)
