"""Tuning for a part of a study: with seeds of its own, and for a fifth of the uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedasmu.study import variants
from fedasmu.study.cells import Cell
from fedasmu.study.sweep import Tried, swept

SEEDS = range(100, 102)  # none of those that a study is run with
SHARE = 0.2  # of the uploads of the run that is tuned for


def tuned(
    recipe: Path,
    methods: str,
    uploads: int,
    out: Path,
    changes: Sequence[str],
    trials: int,
    run: Callable[[list[Cell]], object],
) -> list[Tried]:
    """So many trials of each of the methods, for runs of so many uploads."""
    fewer = f"stop.uploads={max(1, round(SHARE * uploads))}"
    return swept(recipe, variants.read(methods), SEEDS, out, [*changes, fewer], trials, run)
