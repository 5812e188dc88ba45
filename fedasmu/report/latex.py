"""The paper's table: methods as rows; for every task its accuracy and the time to its target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedasmu.report.league import League, Standing, target_of

ESCAPES = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"} | {"±": r"$\pm$", "~": r"\textasciitilde{}"}
)


def escaped(text: str) -> str:
    return text.replace("\\", "/").translate(ESCAPES)


def table(leagues: Sequence[League]) -> str:
    labels = list(dict.fromkeys(standing.label for league in leagues for standing in league.standings))
    heads = " & ".join(rf"\multicolumn{{2}}{{c}}{{{escaped(league.title)}}}" for league in leagues)
    rules = " ".join(rf"\cmidrule(lr){{{2 * place + 2}-{2 * place + 3}}}" for place in range(len(leagues)))
    seconds = " & ".join(_head(target_of(league)) for league in leagues)
    body = "\n".join(rf"{escaped(label)} & {_row(leagues, label)} \\" for label in labels)
    return f"""% needs \\usepackage{{booktabs}}
% Acc: mean of the last 20 evaluations over the seeds; Time: median virtual seconds to the target, / if never reached.
\\begin{{tabular}}{{l{"rr" * len(leagues)}}}
\\toprule
 & {heads} \\\\
{rules}
Method & {seconds} \\\\
\\midrule
{body}
\\bottomrule
\\end{{tabular}}
"""


def _head(target: float | None) -> str:
    return "Acc & Time" + ("" if target is None else f" ({target:g})")


def _row(leagues: Sequence[League], label: str) -> str:
    return " & ".join(_pair(league, league.named(label)) for league in leagues)


def _pair(league: League, standing: Standing | None) -> str:
    if standing is None:
        return "-- & --"
    target = target_of(league)
    others = league.standings
    accuracy = f"{standing.accuracy:.3f}"
    if standing.accuracy >= max(other.accuracy for other in others):
        accuracy = rf"\textbf{{{accuracy}}}"
    if target is None:
        return f"{accuracy} & --"
    median = standing.reach(target).median
    if not math.isfinite(median):
        return f"{accuracy} & /"
    time = f"{median:.0f}"
    if median <= min(other.reach(target).median for other in others):
        time = rf"\textbf{{{time}}}"
    return f"{accuracy} & {time}"
