"""compare from Python: several methods, several seeds, one object that holds what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from fedasmu.errors import UserError
from fedasmu.report.labels import keep_order
from fedasmu.report.league import League, leagues
from fedasmu.report.league import find as find_runs
from fedasmu.report.tables import Grid, main_table
from fedasmu.report.times import times_table
from fedasmu.report.writing import write_report
from fedasmu.run.result import Result, load_runs
from fedasmu.settings.packaged import find
from fedasmu.settings.recipe import Changes, texts
from fedasmu.study import grid, variants
from fedasmu.study.board import Board
from fedasmu.study.cells import Cell, cells, own_method
from fedasmu.study.sweep import for_each, read, without

if TYPE_CHECKING:
    import pandas


class Best(Protocol):
    """What a sweep found."""

    @property
    def best(self) -> dict[str, list[str]]: ...


Tuned = str | Path | Best


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, in one directory. A notebook shows it as its table."""

    directory: Path
    results: tuple[Result, ...]
    failures: dict[str, str]  # what became of no result, and why
    untuned: tuple[str, ...] = ()  # labels for which `tuned` had nothing: they ran with the recipe's settings

    @property
    def leagues(self) -> list[League]:
        trained = [result.directory for result in self.results if not result.is_of_times_alone]
        return leagues(find_runs(trained)) if trained else []

    @property
    def tables(self) -> list[Grid]:
        """What `fedasmu compare` prints at its end."""
        timed: dict[str, list[Result]] = {}
        for result in self.results:
            if result.is_of_times_alone:
                timed.setdefault(result.directory.parent.name, []).append(result)
        return [*map(main_table, self.leagues), *([times_table(timed)] if timed else [])]

    def frame(self) -> pandas.DataFrame:
        """One row a run; needs pandas."""
        return load_runs(self.directory)

    def report(self, out: str | Path | None = None, reference: str = "") -> Path:
        """Tables, figures and a page; the folder they are in."""
        return write_report(self.directory, out, reference)

    def __str__(self) -> str:
        failed = [f"failed: {cell}: {reason}" for cell, reason in self.failures.items()]
        untuned = [f"no settings were found for {label}: it ran with the recipe's" for label in self.untuned]
        return "\n".join([*(table.markdown() for table in self.tables), *untuned, *failed])

    def _repr_markdown_(self) -> str:
        return str(self)


def compare(
    recipe: str | Path,
    methods: str | Sequence[str] = (),
    *,
    seeds: int = 3,
    first_seed: int = 0,
    changes: Changes = (),
    budget: float | None = None,
    tuned: Tuned | None = None,
    workers: grid.Workers = "inline",
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    allow_code: bool = False,
) -> Comparison:
    """Run several methods on several seeds, as `fedasmu compare` does: what is finished is not run again.

    Methods are written as there, "fedasync(alpha=0.9)" for one with settings; the recipe's own unless given. `changes`
    are keys of the recipe, as {"stop.uploads": 100}. With `allow_code` the recipe may name code. `tuned` is what
    `fedasmu.sweep` found, or where it is: each method then runs with its best settings, and for whom there are none is
    told. With `workers`, so many runs go on at once.
    """
    path, range_of_seeds = find(recipe), seed_range(seeds, first_seed)
    chosen = chosen_of(path, methods, allow_code)
    directory = Path("runs") / f"compare-{path.stem}" if out is None else Path(out)
    known = best_of(tuned, allow_code)
    best, untuned = for_each(chosen, known), () if tuned is None else without(chosen, known)
    runs = cells(path, chosen, range_of_seeds, directory, texts(changes), budget, best, allow_code, "changes")
    keep_order(directory, [one.label for one in chosen])
    failed = grid.run(runs, workers, Board(Console(quiet=not progress, emoji=False)), overwrite)
    return Comparison(directory, _results(runs), {str(cell): reason for cell, reason in failed}, tuple(untuned))


def seed_range(count: int, first: int) -> range:
    if not (isinstance(count, Integral) and isinstance(first, Integral)) or count < 1 or first < 0:
        raise UserError(f"seeds = {count}, first_seed = {first}: whole numbers, at least one seed, from 0 on")
    return range(int(first), int(first + count))


def chosen_of(recipe: Path, methods: str | Sequence[str], allow_code: bool) -> list[variants.Variant]:
    """The methods of a list, or of their names with commas; the recipe's own for an empty list."""
    listed = methods if isinstance(methods, str) else ",".join(methods) or own_method(recipe, allow_code)
    return variants.read(listed)


def best_of(tuned: Tuned | None, allow_code: bool) -> dict[str, list[str]]:
    if tuned is None:
        return {}
    return read(Path(tuned), allow_code) if isinstance(tuned, str | Path) else tuned.best


def _results(runs: Sequence[Cell]) -> tuple[Result, ...]:
    return tuple(Result(cell.directory) for cell in runs if cell.is_finished)
