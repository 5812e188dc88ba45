"""A study of the paper, run through the grid, beside what the paper printed, with a verdict on each of its claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedasmu import data
from fedasmu.errors import UserError
from fedasmu.recipe import load
from fedasmu.report.league import League, Standing, find, leagues
from fedasmu.report.tables import Grid, plus_minus
from fedasmu.study import variants
from fedasmu.study.cells import Cell, cells
from fedasmu.study.paper import EVERY, Claim, Printed, claims, gain, printed
from fedasmu.study.studies import Budget, Part, Study

Measured = dict[Part, League]


@dataclass(frozen=True)
class Plan:
    cells: dict[Part, list[Cell]]
    left_out: dict[Part, str]  # with the reason

    @property
    def all_cells(self) -> list[Cell]:
        return [cell for grid in self.cells.values() for cell in grid]


def plan(
    study: Study, budget: Budget, only: Collection[str], recipes: Path, out: Path, overrides: Sequence[str]
) -> Plan:
    known = [part.title for part in study.parts]
    for name in only:
        if name not in known:
            raise UserError(f"--only {name}: this study has: {', '.join(known)}")
    made = Plan({}, {})
    for part in study.parts:
        share, path = budget.share(part.recipe), recipes / f"{part.recipe}.toml"
        if reason := _obstacle(part, only, path, share, overrides):
            made.left_out[part] = reason
            continue
        # Studies that have a part in common share its runs: the directory says nothing about the study.
        made.cells[part] = cells(
            path,
            variants.read(study.methods),
            range(budget.seeds),
            out / part.title,
            [*part.changes, *overrides],
            share,
        )
    return made


def _obstacle(part: Part, only: Collection[str], path: Path, share: float | None, overrides: Sequence[str]) -> str:
    if only and part.title not in only:
        return "not in --only"
    if not path.is_file():
        return f"there is no recipe {part.recipe}"
    name = load(path, overrides).data.name
    if ":" not in name and not any(found for _, found in data.where(name)):
        return f"{name} is not on this machine: `fedasmu data prepare {name}` gets it"
    return "too slow for this budget" if share is None else ""


def measured(made: Plan) -> Measured:
    """The parts of which anything is finished."""
    found: Measured = {}
    for part, grid in made.cells.items():
        done = [cell.directory for cell in grid if (cell.directory / "summary.json").is_file()]
        if done:
            found[part] = _merged(leagues(find(done)), part.title)
    return found


def _merged(parts: list[League], title: str) -> League:
    """Where the environment is what varies (the period), the variants are still one league."""
    return League(title, parts[0].settings, tuple(standing for league in parts for standing in league.standings))


def target_of(study: Study, league: League) -> float:
    return study.target or max(league.targets, default=1.0)


def beside(study: Study, name: str, part: Part, league: League) -> Grid:
    """One part: ours beside the paper's. Times can be compared as multiples of FedASMU's only: the clocks differ."""
    target = target_of(study, league)
    ours = {one.label: Printed(one.accuracy, one.reach(target).median) for one in league.standings}
    theirs = printed(name).get(part.recipe, {})
    rows = []
    for one in league.standings:
        row = [one.label, plus_minus(one.accuracy, one.spread), *_times(one.label, ours)]
        if theirs:
            row += (
                [f"{theirs[one.label].accuracy:.4f}", *_times(one.label, theirs)] if one.label in theirs else [""] * 3
            )
        rows.append(tuple(row))
    head = ("accuracy", f"s to {target:g}", "x fedasmu")
    return Grid(part.title, ("method", *head, *(f"paper: {what}" for what in head if theirs)), tuple(rows))


def _times(label: str, column: dict[str, Printed]) -> tuple[str, str]:
    """Seconds, and how many times FedASMU's."""
    mine, first = column[label].time, column["fedasmu"].time if "fedasmu" in column else math.nan
    multiple = mine / first
    return f"{mine:,.0f}" if math.isfinite(mine) else "/", f"{multiple:.2f}" if math.isfinite(multiple) else ""


@dataclass(frozen=True)
class Gain:
    value: float
    error: float = 0.0  # the standard error of the difference, over the seeds; 0 where it is not known


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    where: str
    gains: tuple[Gain, ...]  # one for each pair that was run; NaN where neither reached the target

    @property
    def known(self) -> list[Gain]:
        return [gain for gain in self.gains if not math.isnan(gain.value)]

    def __str__(self) -> str:
        if not self.known:
            return "not run"
        if self.claim.measure == "spread":
            return "holds" if max(gain.value for gain in self.known) <= self.claim.high else "does not hold"
        close = any(abs(gain.value) < 2 * gain.error for gain in self.known)
        verdict = "holds" if min(gain.value for gain in self.known) > 0 else "does not hold"
        return f"{verdict} (within the noise)" if close else verdict


def verdicts(study: Study, name: str, found: Measured) -> list[Verdict]:
    """The claims about a part by itself, then those about all of them."""
    judged = []
    for part in study.parts:
        mine = {part: found[part]} if part in found else {}
        judged += [judge(study, claim, mine, part.title) for claim in (claims(part.printed) if part.printed else [])]
    return judged + [judge(study, claim, found, "") for claim in claims(name)]


def judge(study: Study, claim: Claim, found: Measured, where: str) -> Verdict:
    gains = [value for league in found.values() for value in _gains(claim, league, target_of(study, league))]
    return Verdict(claim, where, tuple(gains))


def _gains(claim: Claim, league: League, target: float) -> list[Gain]:
    standings = {standing.label: standing for standing in league.standings}
    if claim.measure == "spread":
        values = [standing.accuracy for standing in league.standings]
        return [Gain(100 * (max(values) - min(values)))] if len(values) > 1 else []
    worse = [label for label in standings if label == claim.worse or (claim.worse == EVERY and label != claim.better)]
    if claim.better not in standings:
        return []
    return [_gain(claim, standings[claim.better], standings[label], target) for label in worse]


def _gain(claim: Claim, better: Standing, worse: Standing, target: float) -> Gain:
    if claim.measure == "time":
        return Gain(gain("time", better.reach(target).median, worse.reach(target).median))
    errors = [one.spread / math.sqrt(len(one.runs)) for one in (better, worse) if len(one.runs) > 1]
    return Gain(gain("accuracy", better.accuracy, worse.accuracy), 100 * math.hypot(*errors))


def verdict_table(judged: Sequence[Verdict]) -> Grid:
    rows = tuple(
        (
            f"{verdict.claim}{', ' * bool(verdict.where)}{verdict.where}",
            _range(verdict.claim.measure, (verdict.claim.low, verdict.claim.high)),
            _range(verdict.claim.measure, [gain.value for gain in verdict.known])
            or "neither got there" * bool(verdict.gains),
            str(verdict),
        )
        for verdict in judged
    )
    note = (
        "Gains in points of accuracy, or in percent of the time saved; never: the other one did not reach the target. "
        "Within the noise: a gain is less than two of its standard errors over the seeds."
    )
    return Grid("The paper's claims", ("claim", "paper", "ours", "verdict"), rows, note)


def _range(measure: str, gains: Sequence[float]) -> str:
    if not gains:
        return ""
    unit = " %" if measure == "time" else " points"
    low, high = min(gains), max(gains)
    words = {math.inf: "never", -math.inf: "never itself"}
    ends = [words.get(value) or f"{value:.2f}" for value in ((low,) if low == high else (low, high))]
    return " to ".join(ends) + (unit if math.isfinite(low) or math.isfinite(high) else "")
