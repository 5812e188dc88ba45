"""Every claim of the paper's tables beside ours, cell by cell, for FedASMU and for our form of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedasmu.report.league import League
from fedasmu.report.tables import Grid
from fedasmu.study.judging import OURS, Found, Judgement, judge, verdict_table, verdicts
from fedasmu.study.paper import Claim, Measure, Printed, gain, printed
from fedasmu.study.reproduce import beside, titled
from fedasmu.study.studies import Part, Study

MEASURES: tuple[Measure, ...] = ("accuracy", "time")


def compared(study: Study, name: str, found: Found) -> list[Grid]:
    """Every part beside what the paper printed of it; then the verdicts, for a table cell by cell too."""
    grids = [beside(study, name, part, league) for part, league in found.items()]
    if printed(name) and found:
        grids += [cell(study, name, part, league) for part, league in found.items()]
        grids.append(ours(study, name, found))
    return [*grids, verdict_table(verdicts(study, name, found))]


def cell(study: Study, name: str, part: Part, league: League) -> Grid:
    """One cell: by how much FedASMU is ahead of each method in the paper and here, and FedASMU-R here."""
    column = printed(name)[part.recipe]
    there = [standing.label for standing in league.standings]
    rows = [_row(study, part, league, column, worse) for worse in column if worse in there]
    header = (
        "against",
        *(f"{what}{unit}" for unit in (", points", ", % of time") for what in ("paper", "fedasmu", OURS)),
    )
    note = (
        "never: on most seeds the other one did not reach the target, and counts as if it had at its end; never "
        "itself: only the other one did."
    )
    return Grid(f"{titled(part, league)}: ahead by", header, tuple(rows), note)


def _row(study: Study, part: Part, league: League, column: Mapping[str, Printed], worse: str) -> tuple[str, ...]:
    row = [worse]
    for measure in MEASURES:
        theirs = gain(measure, getattr(column["fedasmu"], measure), getattr(column[worse], measure))
        row.append("" if worse == "fedasmu" else _number(theirs))
        for better in ("fedasmu", OURS):
            verdict = judge(study, Claim(measure, better, worse, theirs, theirs), {part: league}, part.title)
            row.append("" if better == worse else _text(verdict))
    return tuple(row)


def _text(verdict: Judgement) -> str:
    return ", ".join([*(_number(one.value) for one in verdict.known), str(verdict)])


def _number(value: float) -> str:
    return {math.inf: "never", -math.inf: "never itself"}.get(value) or ("" if math.isnan(value) else f"{value:+.1f}")


def ours(study: Study, name: str, found: Found) -> Grid:
    """FedASMU-R against every method of the tables: in how many of the cells it is ahead, behind, or undecided."""
    parts = {part: league for part, league in found.items() if any(one.label == OURS for one in league.standings)}
    rows = []
    for worse in next(iter(printed(name).values())):
        counted = [_counts(study, Claim(measure, OURS, worse, 0.0, 0.0), parts) for measure in MEASURES]
        rows.append((worse, *counted))
    note = f"In how many cells, of {len(parts)} that were run, it is ahead / undecided / behind, as the seeds tell."
    return Grid(f"{OURS} against every method", ("against", "accuracy", "time"), tuple(rows), note)


def _counts(study: Study, claim: Claim, parts: Found) -> str:
    said = [str(judge(study, claim, {part: league}, part.title)) for part, league in parts.items()]
    return " / ".join(str(said.count(word)) for word in ("holds", "undecided", "does not hold"))
