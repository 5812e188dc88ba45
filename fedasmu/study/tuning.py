"""Tuning for a study of the paper: every method, for every part, with seeds of its own on held-out training data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedasmu.recipe import load
from fedasmu.study import variants
from fedasmu.study.cells import Cell, cells
from fedasmu.study.reproduce import Plan
from fedasmu.study.spaces import trials
from fedasmu.study.studies import Part, Study
from fedasmu.study.sweep import held_out
from fedasmu.study.variants import Variant

Tuning = dict[Part, tuple[list[Variant], list[Cell]]]
SEEDS = range(100, 102)  # none of those that a study is run with
SHARE = 0.2  # of the uploads of the run that is tuned for


def tuning(study: Study, made: Plan, recipes: Path, out: Path, overrides: Sequence[str], count: int) -> Tuning:
    """What is to be run: `count` settings of every method of the study, for every part of the plan."""
    found: Tuning = {}
    for part, grid in made.cells.items():
        path, changes = recipes / f"{part.recipe}.toml", [*part.changes, *overrides]
        tried = trials(variants.read(study.methods), load(path, changes).local.lr, count)
        uploads = max(1, round(SHARE * grid[0].config.stop.uploads))
        settings = held_out([*changes, f"stop.uploads={uploads}"])
        found[part] = tried, cells(path, tried, SEEDS, out / "tuning" / part.title, settings)
    return found
