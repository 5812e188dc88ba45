"""The verdicts on the paper's claims: what the runs of each pair of methods say, and whether the seeds tell it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedasmu.report.league import League
from fedasmu.report.lessons import t_95
from fedasmu.report.standing import Run, Standing
from fedasmu.report.tables import Grid
from fedasmu.study.paper import EVERY, Claim, claims, gain
from fedasmu.study.studies import Part, Study

Found = dict[Part, League]  # what was run of a study
OURS = "fedasmu-r"


def target_of(study: Study, league: League) -> float:
    return study.target or max(league.targets, default=1.0)


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
    if min(values) > 0:
        return 1
    return -1 if max(values) < 0 else 0


@dataclass(frozen=True)
class Judgement:
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


def verdicts(study: Study, name: str, found: Found) -> list[Judgement]:
    """The claims about a part by itself, then those about all of them."""
    judged = []
    for part in study.parts:
        mine = {part: found[part]} if part in found else {}
        judged += [judge(study, claim, mine, part.title) for claim in (claims(part.printed) if part.printed else [])]
    return judged + [judge(study, claim, found, "") for claim in claims(name)]


def judge(study: Study, claim: Claim, found: Found, where: str) -> Judgement:
    gains = [value for league in found.values() for value in _gains(claim, league, target_of(study, league))]
    return Judgement(claim, where, tuple(gains))


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


def verdict_table(judged: Sequence[Judgement]) -> Grid:
    rows = tuple(_row(verdict) for verdict in judged)
    note = (
        "Gains in points of accuracy, or in percent of the time saved; never: the other one did not reach the target. "
        "Undecided: a t-test over the seeds (5 %) does not tell some pair's gain from 0, or there is one seed only. "
        "No answer: neither reached the target."
    )
    return Grid("The paper's claims", ("claim", "paper", "ours", "verdict"), rows, note)


def _row(verdict: Judgement) -> tuple[str, str, str, str]:
    claim = verdict.claim
    name = f"{claim}, {verdict.where}" if verdict.where else str(claim)
    ours = _range(claim.measure, [gain.value for gain in verdict.known])
    if verdict.gains and not ours:
        ours = "neither got there"
    return name, _range(claim.measure, (claim.low, claim.high)), ours, str(verdict)


def _range(measure: str, gains: Sequence[float]) -> str:
    if not gains:
        return ""
    unit = " %" if measure == "time" else " points"
    low, high = min(gains), max(gains)
    words = {math.inf: "never", -math.inf: "never itself"}
    ends = [words.get(value) or f"{value:.2f}" for value in ((low,) if low == high else (low, high))]
    return " to ".join(ends) + (unit if math.isfinite(low) or math.isfinite(high) else "")
