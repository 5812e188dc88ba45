"""Colours and dashes of the methods: the same in every figure and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from fedasmu.report.league import League
from fedasmu.report.lessons import few

# After Okabe and Ito, which people with any colour vision can tell apart. page/style.css has them, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4568f", "#b97f00", "#2f93c9", "#6d5fb5", "#4c545d")
DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)))  # after eight colours the same ones come again, with a broken line


def order(leagues: Sequence[League]) -> list[str]:
    """The labels of all methods; those that are looked at first get the plain lines and colours of their own."""
    first = [one.label for league in leagues for one in few(league)]
    return list(dict.fromkeys([*first, *(one.label for league in leagues for one in league.standings)]))
