"""What a league teaches: who is ahead, by how much, and which differences are noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from fedasmu.report.league import League, target_of
from fedasmu.report.standing import Standing, paired

FEW = 6  # methods that a picture can show without a tangle
# Student's t that 95 % of the samples stay within, two-sided, for 1 to 10 degrees of freedom; beyond, nearly 2.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def t_95(freedom: int) -> float:
    """The tabled value; beyond the table 1.96 + 2.6 / freedom, which is less than 0.02 off."""
    return T_95[freedom - 1] if freedom <= len(T_95) else 1.96 + 2.6 / freedom


def decided(values: Sequence[float]) -> int:
    """The sign of the mean where Student's t (5 %) tells it from 0, and 0 where the values do not tell."""
    if len(values) < 2:
        return 0
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return 0 if abs(mean) <= t_95(len(values) - 1) * error else int(math.copysign(1, mean))


def noise(league: League) -> float:
    """The least difference in the final score that the seeds' spread lets one believe in; NaN with a single seed."""
    counted = [one for one in league.standings if len(one.runs) > 1]
    freedom = sum(len(one.runs) - 1 for one in counted)
    if not freedom:
        return math.nan
    pooled = sum((len(one.runs) - 1) * one.spread**2 for one in counted) / freedom
    return t_95(freedom) * math.sqrt(pooled * 2 / min(len(one.runs) for one in counted))


def ranked(league: League) -> list[Standing]:
    """The best first."""
    return sorted(league.standings, key=lambda one: -league.metric.better(one.score))


def leaders(league: League) -> list[Standing]:
    """The best method, and those that the seeds do not tell from it; nobody leads by a single seed.

    Two seeds alone tell next to nothing apart, however far: there, what all methods' seeds call no noise is no tie.
    """
    first, least = ranked(league)[0], noise(league)

    def told(other: Standing) -> bool:
        values = [mine.score - theirs.score for mine, theirs in paired(first, other)]
        beyond = len(values) == 2 and abs(statistics.fmean(values)) > least
        return decided(values) != 0 or beyond

    return [one for one in ranked(league) if one is first or not told(one)] if len(first.runs) > 1 else []


def few(league: League) -> list[Standing]:
    """The methods to look at first: the reference, who leads at the end and in time, FedAvg, and the next best."""
    at_end = best_at(league, league.common_time)
    in_time = (one for one in league.standings if one.score_at(league.common_time) == at_end)
    known = (league.reference, ranked(league)[0], next(in_time, None), league.named("fedavg"), *ranked(league))
    return list({one.label: one for one in known if one is not None}.values())[:FEW]


def best_at(league: League, time: float) -> float:
    """The best score at that time; NaN if nobody had been measured by then."""
    scores = np.array([one.score_at(time) for one in league.standings])
    known = scores[~np.isnan(scores)]
    return league.metric.best(known) if len(known) else math.nan


def best(league: League) -> list[set[str]]:
    """For each method the columns in which nobody is better, where the seeds let one say so."""
    leading = {one.label for one in leaders(league)}
    at_end = best_at(league, league.common_time)
    times = {target: min(one.reach(target).median for one in league.standings) for target in league.targets}
    return [
        ({league.metric.name} if one.label in leading else set())
        | ({"at"} if one.score_at(league.common_time) == at_end else set())
        | {f"s to {target:g}" for target, time in times.items() if one.reach(target).median == time < math.inf}
        for one in league.standings
    ]


def lesson(league: League) -> str:
    """In a few sentences, what there is to learn from the table."""
    if len(league.standings) == 1:
        only = league.reference
        return f"{only.label} ends at {_called(league)} of {league.metric.shown(only.score, 3)}."
    first = ranked(league)[0]
    said = [_score(league, first), _time(league), _noise(league)]
    return " ".join(sentence for sentence in said if sentence)


def _score(league: League, first: Standing) -> str:
    others = [one.label for one in leaders(league)[1:]]
    alike = [one.label for one in league.standings if one.score == first.score]
    if len(alike) > 1:
        names = " and ".join(alike) if len(alike) == 2 else f"{len(alike)} methods"
        return f"{names} end alike, at {_called(league)} of {league.metric.shown(first.score, 3)}."
    place = "highest" if league.metric.larger else "lowest"
    ahead = f"{first.label} ends {place}, at {_called(league)} of {league.metric.shown(first.score, 3)}"
    if others:
        names = ", ".join(others) if len(others) < FEW else f"{len(others)} others"
        return f"{ahead}; the seeds do not tell {names} from it."
    if first is league.reference:
        return f"{ahead}, {_apart(league, first.score - ranked(league)[1].score)} before the next."
    return f"{ahead}, {_apart(league, first.score - league.reference.score)} before {league.reference.label}."


def _called(league: League) -> str:
    return "an accuracy" if league.metric.is_share else f"a {league.metric.name}"


def _apart(league: League, difference: float) -> str:
    """A difference of scores: shares in points, of a hundred."""
    return f"{100 * abs(difference):.1f} points" if league.metric.is_share else f"{abs(difference):.3g}"


def _time(league: League) -> str:
    target = target_of(league)
    reached = [] if target is None else [one for one in league.standings if math.isfinite(one.reach(target).median)]
    if target is None or len(reached) < 2:
        return ""
    times = {one.label: one.reach(target).median for one in reached}
    quickest, second = sorted(times, key=lambda label: times[label])[:2]
    other = league.reference.label if league.reference.label in times.keys() - {quickest} else second
    factor = times[other] / max(times[quickest], 1e-9)
    if factor < 1.05:
        return ""
    first = f"{quickest} is the first at {target:g}, after {times[quickest]:,.0f} s"
    return f"{first}; {other} takes {factor:.1f} times as long."


def _noise(league: League) -> str:
    least, most = noise(league), max(len(one.runs) for one in league.standings)
    if math.isnan(least):
        return "One seed each: what is noise cannot be told."
    if len(ranked(league)[0].runs) == 1:
        return f"{ranked(league)[0].label} has one seed: whether it leads cannot be told."
    if not least:  # all seeds of each method end alike
        return ""
    if most > 2:  # enough for the t-test by which they are told apart, seed by seed
        return ""
    return f"Differences below {_apart(league, least)} are within the noise of the seeds."
