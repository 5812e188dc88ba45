"""The paper's table: methods as rows; for every task its accuracy and the time to its target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedasmu.algorithms import titled
from fedasmu.measure import Metric
from fedasmu.report.league import League
from fedasmu.report.lessons import best
from fedasmu.report.standing import Reach
from fedasmu.report.tables import settled

ESCAPES = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def escaped(text: str) -> str:
    return text.replace("\\", "/").translate(ESCAPES)


def table(leagues: Sequence[League]) -> str:
    labels = list(dict.fromkeys(standing.label for league in leagues for standing in league.standings))
    widths = [1 + len(league.targets) for league in leagues]
    starts = [2 + sum(widths[:place]) for place in range(len(widths))]
    columns = list(zip(leagues, starts, widths, strict=True))
    heads = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{escaped(league.title)}}}" for league, _, width in columns)
    rules = " ".join(rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for _, start, width in columns)
    seconds = " & ".join(name for league in leagues for name in _heads(league))
    body = "\n".join(rf"{escaped(titled(label))} & {_row(leagues, label)} \\" for label in labels)
    evaluations = settled([standing for league in leagues for standing in league.standings])
    return f"""% needs \\usepackage{{booktabs}}
% {_first(leagues)}: {evaluations}, mean and standard deviation over the seeds. Times: median seconds
% to that value; / if never reached, and in brackets how many seeds got there if not all did. Bold: the best, and for
% the first column whatever a paired t-test over the seeds (5 %; of two: their noise) does not tell from it.
\\begin{{tabular}}{{l{"r" * sum(widths)}}}
\\toprule
 & {heads} \\\\
{rules}
Method & {seconds} \\\\
\\midrule
{body}
\\bottomrule
\\end{{tabular}}
"""


def _heads(league: League) -> list[str]:
    if not league.metric.is_share:
        return [escaped(league.metric.name), *(f"to {target:g}" for target in league.targets)]
    return [r"Acc (\%)", *(rf"to {100 * target:g}\,\%" for target in league.targets)]


def _first(leagues: Sequence[League]) -> str:
    """What the first columns hold, in words."""
    names = dict.fromkeys("Acc, in percent" if one.metric.is_share else one.metric.name for one in leagues)
    return "; ".join(names)


def _row(leagues: Sequence[League], label: str) -> str:
    return " & ".join(cell for league in leagues for cell in _cells(league, label))


def _cells(league: League, label: str) -> list[str]:
    standing = league.named(label)
    if standing is None:
        return ["--"] * (1 + len(league.targets))
    bold = best(league)[league.standings.index(standing)]
    cells = {league.metric.name: with_spread(standing.metric, standing.score, standing.spread)}
    cells |= {f"s to {target:g}": _time(standing.reach(target)) for target in league.targets}
    return [rf"\textbf{{{text}}}" if name in bold else text for name, text in cells.items()]


def with_spread(metric: Metric, score: float, spread: float) -> str:
    unit, form = (100, ".1f") if metric.is_share else (1, _four_digits(score))
    deviation = "" if math.isnan(spread) else rf" $\pm$ {unit * spread:{form}}"
    return f"{unit * score:{form}}{deviation}"


def _four_digits(score: float) -> str:
    """The form that shows so many of a number, and its deviation to the same place."""
    size = math.floor(math.log10(abs(score))) if score else 0
    return f".{max(0, 3 - size)}f" if -4 <= size < 15 else ".3e"


def _time(reach: Reach) -> str:
    time = f"{reach.median:,.0f}" if math.isfinite(reach.median) else "/"
    return time if reach.reached in (0, reach.seeds) else f"{time} ({reach.reached} of {reach.seeds} seeds)"
