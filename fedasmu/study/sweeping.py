"""sweep from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedasmu.errors import UserError
from fedasmu.report.tables import Grid
from fedasmu.settings.packaged import find
from fedasmu.settings.recipe import Changes, texts
from fedasmu.study import grid as runs_of
from fedasmu.study import sweep as found
from fedasmu.study.board import Board
from fedasmu.study.cells import Cell
from fedasmu.study.comparison import Tuned, best_of, chosen_of, seed_range
from fedasmu.study.variants import axes_of, crossed, starting_from


@dataclass(frozen=True)
class Sweep:
    """What a sweep found. A notebook shows it as its table; `fedasmu.compare(..., tuned=...)` takes it."""

    directory: Path
    tried: tuple[found.Tried, ...]  # every setting, the best of each method first
    failures: dict[str, str]  # what became of no result, and why
    untuned: tuple[str, ...] = ()  # labels for which `tuned` had nothing: they started from the recipe's settings

    @property
    def best(self) -> dict[str, list[str]]:
        """The best settings of each method, as changes of the recipe."""
        return found.best(self.tried)

    @property
    def edges(self) -> list[str]:
        """Of these, the numbers that are the least or the largest that were tried: a better one may lie beyond."""
        return found.at_an_edge(self.tried)

    @property
    def table(self) -> Grid:
        """What `fedasmu sweep` prints at its end."""
        return found.table(self.tried)

    def __str__(self) -> str:
        edges = [f"{edge}: a better one may lie beyond" for edge in self.edges]
        failed = [f"failed: {cell}: {reason}" for cell, reason in self.failures.items()]
        untuned = [f"no settings were found for {label}: it began with the recipe's" for label in self.untuned]
        return "\n".join([self.table.markdown(), *untuned, *edges, *failed])

    def _repr_markdown_(self) -> str:
        return str(self)


def sweep(
    recipe: str | Path,
    methods: str | Sequence[str] = (),
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    trials: int | None = None,
    seeds: int = 1,
    first_seed: int = 0,
    changes: Changes = (),
    tuned: Tuned | None = None,
    budget: float | None = None,
    workers: runs_of.Workers = "inline",
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    allow_code: bool = False,
) -> Sweep:
    """Find the best settings of each method, as `fedasmu sweep` does: on training data that is held out for it.

    `grid` has the values to try, as {"local.lr": [0.01, 0.03], "fedasync.alpha": [0.3, 0.6]}. Instead of it, `trials`
    tries so many settings of every method: learning rates, then settings of its own at the best of them. Methods start
    from the recipe's settings, or from those that an earlier sweep found: `tuned`. All else is as in `fedasmu.compare`.
    """
    if bool(grid) == (trials is not None):
        raise UserError(
            "grid or trials: what is to be tried? For instance grid={'local.lr': [0.01, 0.03]}, or trials=5"
        )
    path, range_of_seeds = find(recipe), seed_range(seeds, first_seed)
    directory = Path("runs") / f"sweep-{path.stem}" if out is None else Path(out)
    known, listed = best_of(tuned, allow_code), chosen_of(path, methods, allow_code)
    untuned = () if tuned is None else found.without(listed, known)
    named = starting_from(known, listed)
    chosen = crossed(named, axes_of(grid or {}, "grid"), "grid")
    failed: runs_of.Failures = []

    def run(cells: list[Cell]) -> None:
        failed.extend(runs_of.run(cells, workers, Board(Console(quiet=not progress, emoji=False)), overwrite))

    results = found.swept(
        path, chosen, range_of_seeds, directory, texts(changes), trials, run, budget, allow_code, "changes"
    )
    if results:
        found.write(results, str(recipe), directory)
    return Sweep(directory, tuple(results), {str(cell): reason for cell, reason in failed}, tuple(untuned))
