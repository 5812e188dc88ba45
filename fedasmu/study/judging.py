"""The verdicts on the paper's claims: what the runs of each pair of methods say, and whether the seeds tell it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedasmu.report.league import League
from fedasmu.report.lessons import decided
from fedasmu.report.standing import Standing, paired
from fedasmu.report.tables import Grid
from fedasmu.run.result import Result
from fedasmu.study.paper import EVERY, NEXT_TO_NONE, Claim, claims, gain
from fedasmu.study.studies import Part, Study

Found = dict[Part, League]  # what was run of a study
OURS = "fedasmu-r"


def target_of(study: Study, league: League) -> float:
    return study.target or max(league.targets, default=1.0)


@dataclass(frozen=True)
class Gain:
    """What one pair of methods says about a claim."""

    value: float  # over the seeds that both were run on; NaN where neither reached the target
    by_seed: tuple[float, ...] = ()  # what is tested: above 0 where a seed is for the claim; NaN: it does not say

    @property
    def sign(self) -> int:
        """1: for the claim, -1: against it, 0: the seeds do not tell."""
        return decided([value for value in self.by_seed if not math.isnan(value)])


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
        worst = min(gain.sign for gain in self.gains)
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
        apart = [100 * (one.score - other.score) for one, other in paired(best, worst)]
        spread = statistics.fmean(apart) if apart else math.nan
        return [Gain(spread, tuple(claim.high - value for value in apart))]
    baselines = set(standings) - {claim.better, OURS}
    worse = [label for label in standings if label == claim.worse or (claim.worse == EVERY and label in baselines)]
    if claim.better not in standings:
        return []
    return [_gain(claim, standings[claim.better], standings[label], target) for label in worse]


def _gain(claim: Claim, better: Standing, worse: Standing, target: float) -> Gain:
    pairs = paired(better, worse)
    if not pairs:
        return Gain(math.nan)
    mine, theirs = zip(*pairs, strict=True)
    if claim.measure == "time":
        medians = (statistics.median(_never(one.time_to(target)) for one in each) for each in (mine, theirs))
        return Gain(gain("time", *medians), tuple(haste(*pair, target) for pair in pairs))
    means = (statistics.fmean(one.score for one in each) for each in (mine, theirs))
    return Gain(gain("accuracy", *means), tuple(gain("accuracy", one.score, other.score) for one, other in pairs))


def haste(better: Result, worse: Result, target: float) -> float:
    """log(theirs / mine) on one seed: percent of the time would make one slow seed count for more than one quick one.

    A run that never got there needs longer than it lasted: so much at the least. NaN: neither got there, or the one
    that did not had ended before the other one was there.
    """
    mine, theirs = (one.time_to(target) for one in (better, worse))
    if mine is None and theirs is None:
        return math.nan
    longer = math.log(_at_least(worse, theirs) / _at_least(better, mine))
    known = longer < 0 if mine is None else longer > 0 if theirs is None else True
    return longer if known else math.nan


def _at_least(result: Result, time: float | None) -> float:
    """In seconds."""
    return max(NEXT_TO_NONE, float(result.curve["time"][-1]) if time is None else time)


def _never(time: float | None) -> float:
    return math.inf if time is None else time


def verdict_table(judged: Sequence[Judgement]) -> Grid:
    rows = tuple(_row(verdict) for verdict in judged)
    note = (
        "Gains in points of accuracy, or in percent of the time saved; never: on most seeds the other one did not "
        "reach the target. Undecided: a t-test over the seeds (5 %; of times, of their logarithms) does not tell some "
        "pair's gain from 0, neither of some pair got there, or there is one seed only; in it a run that never got "
        "there counts as if it had at its end. No answer: neither reached the target, or no seed was run with both."
    )
    return Grid("The paper's claims", ("claim", "paper", "ours", "verdict"), rows, note)


def _row(verdict: Judgement) -> tuple[str, str, str, str]:
    claim = verdict.claim
    name = f"{claim}, {verdict.where}" if verdict.where else str(claim)
    ours = _range(claim.measure, [gain.value for gain in verdict.known])
    if verdict.gains and not ours:
        shared = any(gain.by_seed for gain in verdict.gains)
        ours = "neither got there on most seeds" if shared else "no seed in common"
    return name, _range(claim.measure, (claim.low, claim.high)), ours, str(verdict)


def _range(measure: str, gains: Sequence[float]) -> str:
    if not gains:
        return ""
    unit = " %" if measure == "time" else " points"
    low, high = min(gains), max(gains)
    words = {math.inf: "never", -math.inf: "never itself"}
    ends = [words.get(value) or f"{value:.2f}" for value in ((low,) if low == high else (low, high))]
    return " to ".join(ends) + (unit if math.isfinite(low) or math.isfinite(high) else "")
