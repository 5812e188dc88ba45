"""Leagues as tables: on the terminal, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.markup import escape
from rich.table import Table

from fedasmu.errors import printable
from fedasmu.report.league import League
from fedasmu.report.numbers import finite, megabytes, plus_minus, reached, score_at
from fedasmu.report.standing import Standing, guarded, measured


@dataclass(frozen=True)
class Grid:
    """A table before it has a look."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def parts(self, width: int) -> list[Grid]:
        """Tables that are no wider than this, each with the first column, as few as will do."""
        needs = [max(map(len, column)) + 3 for column in zip(self.header, *self.rows, strict=True)]
        groups: list[list[int]] = [[]]
        for column in range(1, len(needs)):
            if groups[-1] and 1 + needs[0] + sum(needs[place] for place in [*groups[-1], column]) > width:
                groups.append([])
            groups[-1].append(column)
        return [
            replace(
                self,
                title=self.title if place == 0 else "",
                header=_picked(self.header, group),
                rows=tuple(_picked(row, group) for row in self.rows),
            )
            for place, group in enumerate(groups)
        ]

    def rich(self) -> Table:
        view = Table(title=escape(self.title) or None, title_justify="left")
        for place, name in enumerate(self.header):
            view.add_column(escape(name), justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            view.add_row(*map(escape, row))
        return view

    def markdown(self) -> str:
        rule = ["---", *("---:" for _ in self.header[1:])]
        cells = ([cell.replace("|", "\\|") for cell in row] for row in (self.header, rule, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in cells]
        note = ["", self.note] if self.note else []
        return "\n".join([f"**{self.title}**", "", *lines, *note]) + "\n"


def _picked(row: Sequence[str], columns: Sequence[int]) -> tuple[str, ...]:
    return (row[0], *(row[column] for column in columns))


def main_table(league: League) -> Grid:
    """What `fedasmu compare` ends in."""
    targets = league.targets
    rows = tuple(
        (
            standing.label,
            plus_minus(standing),
            score_at(standing, league.common_time),
            league.metric.shown(standing.last_score),
            league.metric.shown(standing.best_score),
            *(_time(league, standing, target) for target in targets),
            f"{standing.mean('mean_staleness'):.1f}",
            _discarded(standing),
            megabytes(standing.mean("bytes_down") / 1e6),
            megabytes(standing.mean("bytes_up") / 1e6),
            f"{standing.mean('wall_seconds'):,.0f}",
        )
        for standing in league.standings
    )
    times = (f"s to {target:g}" for target in targets)
    when = f"at {league.common_time:,.0f} s"
    header = (
        "method",
        league.metric.name,
        when,
        "last",
        "best",
        *times,
        "staleness",
        "discarded",
        "MB down",
        "MB up",
        "wall s",
    )
    return Grid(league.title, header, rows, _note(league, when))


def _note(league: League, when: str) -> str:
    """What the table's columns are, as far as it has them, and what makes its rows unequal."""
    several = any(len(standing.runs) > 1 for standing in league.standings)
    note = (
        f"{seeds_of(league)}; {_judged(league)}: {settled(league.standings)}"
        f"{', ± standard deviation' if several else ''}; {when}: the same at that {league.clock}, which all runs "
        "reached; last: the last evaluation alone."
    )
    if league.targets:
        seconds = league.clock.replace("time", "seconds")
        compared = f", and in brackets how many times as long as {league.reference.label}"
        note += f" Times: {'median ' * several}{seconds}{compared if len(league.standings) > 1 else ''}."
    if any(standing.mean("refused") for standing in league.standings):
        guard = "went beyond guard.refuse, or that " * guarded(league.reference.runs[0].result)
        why = "most often because training diverged (local.lr)"
        note += f" Refused: uploads that {guard}the server could not use, {why}."
    uploads = [count for standing in league.standings for count in standing.values("uploads")]
    if min(uploads) < 0.95 * max(uploads):  # a whole round may be a little more than was asked for
        note += f" Not of equal length: runs ended after {min(uploads):,.0f} to {max(uploads):,.0f} uploads."
    engines = Counter(printable(str(run.result.summary.get("engine"))) for one in league.standings for run in one.runs)
    if len(engines) > 1:
        note += f" Engines of the runs: {', '.join(f'{name} ({count})' for name, count in engines.most_common())}."
    return note


def seeds_of(league: League) -> str:
    """How many, and who has fewer or others."""
    seeds = {one.label: [run.seed for run in one.runs] for one in league.standings}
    usual = max(seeds.values(), key=len)
    fewer = [
        f"{label} {len(each)}" if set(each) < set(usual) else f"{label}: seeds {', '.join(map(str, each))}"
        for label, each in seeds.items()
        if each != usual
    ]
    return (f"Means over {len(usual)} seeds" if len(usual) > 1 else "One seed") + f" ({'; '.join(fewer)})" * bool(fewer)


def _judged(league: League) -> str:
    name = league.metric.name if league.metric.larger else f"{league.metric.name} (less is better)"
    how = measured(league.reference.runs[0].result)
    return f"{name}, measured {how}" if how else name


def settled(standings: Sequence[Standing]) -> str:
    """How many evaluations the score is the mean of."""
    counts = {len(run.result.settled()) for standing in standings for run in standing.runs}
    low, high = min(counts), max(counts)
    if high == 1:
        return "the last evaluation"
    return f"the mean of the last {low if low == high else f'{low} to {high}'} evaluations"


def _discarded(standing: Standing) -> str:
    refused = standing.mean("refused")
    return f"{standing.discarded:,.0f}" + (f" ({refused:,.0f} refused)" if refused else "")


def communication_table(league: League) -> Grid:
    """Bytes by method, what the fresh models add, and what a megabyte buys."""
    targets = league.targets
    rows = tuple(
        (
            standing.label,
            megabytes(standing.mean("bytes_down") / 1e6),
            megabytes(standing.fresh_megabytes),
            finite(standing.fresh_megabytes / max(standing.mean("bytes_down") / 1e6, 1e-9), ".0%").replace("%", " %"),
            megabytes(standing.mean("bytes_up") / 1e6),
            *([f"{100 * standing.score / max(standing.megabytes, 1e-9):.3g}"] if league.metric.is_share else []),
            *(megabytes(standing.megabytes_to(target)) for target in targets),
        )
        for standing in league.standings
    )
    needed = (f"MB to {target:g}" for target in targets)
    header = (
        "method",
        "MB down",
        "of it fresh",
        "share",
        "MB up",
        *(["% per MB"] if league.metric.is_share else []),
        *needed,
    )
    note = (
        "Fresh: models that devices asked for in the middle of their training. MB to a target: both directions, median."
    )
    return Grid(f"Communication: {league.title}", header, rows, note)


def _time(league: League, standing: Standing, target: float) -> str:
    factor = league.times_as_long(standing, target)
    compared = f" ({factor:.2f}x)" if standing is not league.reference and math.isfinite(factor) else ""
    return reached(standing.reach(target), compared) or "not reached"


def write_csv(leagues: Sequence[League]) -> str:
    """Everything, one line for each method on each task, with full precision and empty where there is no number."""
    targets = sorted({target for league in leagues for target in league.targets})
    means = ("virtual_seconds", "version", "uploads", "stale", "refused", "lost", "mean_staleness")
    sent = ("bytes_down", "bytes_up", "wall_seconds")
    times = [f"{what}_{target:g}" for target in targets for what in ("time_to", "reached", "times_as_long", "mb_to")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    finals = ("metric", "score", "score_sd", "common_time", "score_at_common_time", "last_score", "best_score")
    names = ["task", "method", "seeds", *finals, *means, *sent, "fresh_mb", "score_per_mb"]
    writer.writerow(names + times)
    for league in leagues:
        for one in league.standings:
            row = [league.title, one.label, len(one.runs), one.metric.name, one.score, one.spread]
            row += [league.common_time, one.score_at(league.common_time), one.last_score, one.best_score]
            row += [one.mean(key) for key in (*means, *sent)]
            row += [one.fresh_megabytes, one.score / max(one.megabytes, 1e-9)]
            for target in targets:
                reach = one.reach(target)
                row += [reach.median, reach.reached, league.times_as_long(one, target), one.megabytes_to(target)]
            writer.writerow(_cell(value) for value in row)
    return file.getvalue()


def _cell(value: object) -> object:
    """Empty where there is no number. A spreadsheet takes a text that begins like a formula for one, unless quoted."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return "" if isinstance(value, float) and not math.isfinite(value) else value
