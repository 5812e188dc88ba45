"""A study of the paper, run through the grid, beside what the paper printed, with a verdict on each of its claims."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedasmu import data
from fedasmu.errors import UserError
from fedasmu.recipe import load
from fedasmu.report.league import League, find, leagues
from fedasmu.report.lessons import t_95
from fedasmu.report.standing import Run, Standing
from fedasmu.report.tables import Grid, plus_minus
from fedasmu.study import variants
from fedasmu.study.cells import Cell, cells
from fedasmu.study.paper import EVERY, Claim, Printed, claims, gain, printed
from fedasmu.study.studies import Budget, Part, Study

Measured = dict[Part, League]
OURS = "fedasmu-r"


@dataclass(frozen=True)
class Plan:
    cells: dict[Part, list[Cell]]
    left_out: dict[Part, str]  # with the reason

    @property
    def all_cells(self) -> list[Cell]:
        return [cell for grid in self.cells.values() for cell in grid]

    @property
    def spent(self) -> str:
        """What the cells are really given, overrides and all."""
        seeds = len({cell.seed for cell in self.all_cells})
        parts: dict[int, list[str]] = defaultdict(list)
        for part, grid in self.cells.items():
            parts[max(cell.config.stop.uploads for cell in grid)].append(part.title)
        uploads = [f"{count:,} uploads for {', '.join(titles)}" for count, titles in parts.items()]
        return "; ".join([f"{seeds} seed{'s' * (seeds != 1)}", *uploads]) if parts else "nothing to run"


def plan(
    study: Study,
    budget: Budget,
    only: Collection[str],
    recipes: Path,
    out: Path,
    overrides: Sequence[str],
    tuned: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> Plan:
    """`tuned`: the best settings of each method, by the title of a part."""
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
            (tuned or {}).get(part.title),
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


def titled(part: Part, league: League) -> str:
    """With the data that were really there, where they are not those that the recipe names: a part of them."""
    results = [run.result for standing in league.standings for run in standing.runs]
    other = {str(one.summary["data"]) for one in results} - {str(one.config["data"]["name"]) for one in results}
    return f"{part.title} (on {', '.join(sorted(other))})" if other else part.title


def beside(study: Study, name: str, part: Part, league: League) -> Grid:
    """One part: ours beside the paper's. Times can be compared as multiples of FedASMU's only: the clocks differ."""
    target = target_of(study, league)
    ours = {one.label: Printed(one.score, one.reach(target).median) for one in league.standings}
    theirs = printed(name).get(part.recipe, {})
    rows = []
    for one in league.standings:
        row = [one.label, plus_minus(one.score, one.spread), *_times(one.label, ours)]
        if theirs:
            row += (
                [f"{theirs[one.label].accuracy:.4f}", *_times(one.label, theirs)] if one.label in theirs else [""] * 3
            )
        rows.append(tuple(row))
    head = ("accuracy", f"s to {target:g}", "x fedasmu")
    return Grid(titled(part, league), ("method", *head, *(f"paper: {what}" for what in head if theirs)), tuple(rows))


def _times(label: str, column: dict[str, Printed]) -> tuple[str, str]:
    """Seconds, and how many times FedASMU's."""
    mine, first = column[label].time, column["fedasmu"].time if "fedasmu" in column else math.nan
    multiple = mine / first
    return f"{mine:,.0f}" if math.isfinite(mine) else "/", f"{multiple:.2f}" if math.isfinite(multiple) else ""


@dataclass(frozen=True)
class Gain:
    """What one pair of methods says about a claim."""

    value: float  # over all seeds; NaN where neither reached the target
    by_seed: tuple[float, ...] = ()  # how far above 0, the claim's own bound, it is on each seed that both were run on

    @property
    def sign(self) -> int:
        """1: above the claim's bound, -1: below it, 0: the seeds do not tell."""
        return decided([value for value in self.by_seed if not math.isnan(value)])


def decided(values: Sequence[float]) -> int:
    """The sign of the mean where Student's t (5 %) tells it from 0; of infinite values where all agree."""
    if len(values) < 2:
        return 0
    if all(map(math.isfinite, values)):
        mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
        return 0 if abs(mean) <= t_95(len(values) - 1) * error else int(math.copysign(1, mean))
    return 1 if min(values) > 0 else -1 if max(values) < 0 else 0


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    where: str
    gains: tuple[Gain, ...]  # one for each pair that was run

    @property
    def known(self) -> list[Gain]:
        return [gain for gain in self.gains if not math.isnan(gain.value)]

    def __str__(self) -> str:
        if not self.known:
            return "no answer" if self.gains else "not run"
        worst = min(gain.sign for gain in self.known)
        return {1: "holds", 0: "undecided", -1: "does not hold"}[worst]


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
        if len(standings) < 2:
            return []
        best, worst = (pick(league.standings, key=lambda one: one.score) for pick in (max, min))
        apart = [100 * (one - other) for one, other in _pairs(best, worst, lambda run: run.result.score)]
        return [Gain(100 * (best.score - worst.score), tuple(claim.high - value for value in apart))]
    baselines = set(standings) - {claim.better, OURS}
    worse = [label for label in standings if label == claim.worse or (claim.worse == EVERY and label in baselines)]
    if claim.better not in standings:
        return []
    return [_gain(claim, standings[claim.better], standings[label], target) for label in worse]


def _gain(claim: Claim, better: Standing, worse: Standing, target: float) -> Gain:
    if claim.measure == "time":
        whole = gain("time", better.reach(target).median, worse.reach(target).median)
        pairs = _pairs(better, worse, lambda run: _never(run.result.time_to(target)))
    else:
        whole = gain("accuracy", better.score, worse.score)
        pairs = _pairs(better, worse, lambda run: run.result.score)
    return Gain(whole, tuple(gain(claim.measure, *pair) for pair in pairs))


def _never(time: float | None) -> float:
    return math.inf if time is None else time


def _pairs(one: Standing, other: Standing, measure: Callable[[Run], float]) -> list[tuple[float, float]]:
    """Of the seeds that both were run on: these met the same split, fleet and initial weights."""
    there = {run.seed: measure(run) for run in other.runs}
    return [(measure(run), there[run.seed]) for run in one.runs if run.seed in there]


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
        "Undecided: a t-test over the seeds (5 %) does not tell some pair's gain from 0, or there is one seed only. "
        "No answer: neither reached the target."
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
