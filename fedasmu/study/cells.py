"""The cells of a study: one method with its settings and one seed, in a run directory of its own.

A cell is an ordinary run: DIR/<label>/seed-<k> can be looked at, resumed and repeated like any other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fedasmu.errors import UserError
from fedasmu.run.extension import differences, read_here
from fedasmu.run.start import start_of, vouched
from fedasmu.settings.config import Config
from fedasmu.settings.recipe import key_of, load, override, parse, read
from fedasmu.storage.record import BEFORE
from fedasmu.study.variants import Variant, check_left_to_studies

STRAY = BEFORE | {"fleet.csv", "error.txt"}  # of a run that was killed before it began
Stage = Literal["new", "begun", "finished"]


@dataclass(frozen=True)
class Cell:
    label: str
    seed: int
    config: Config
    directory: Path
    track: tuple[str, ...] = ()  # the trackers that follow it

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"

    def stage(self, overwrite: bool = False) -> Stage:
        """How far it is. What was made with other settings is refused, or removed."""
        return stages([self], overwrite)[0]

    @property
    def is_finished(self) -> bool:
        return (self.directory / "summary.json").is_file()

    @property
    def is_foreign(self) -> bool:
        """Whether something else than a run has its place."""
        if not self.directory.exists() or (self.directory / "config.toml").is_file():
            return False
        return not {path.name for path in self.directory.iterdir()} <= STRAY

    def changed(self) -> list[str]:
        """The settings that the run in its place was made with otherwise."""
        if not (self.directory / "config.toml").is_file():
            return []
        there = load(self.directory / "config.toml", allow_code=self.config.code.values())
        return differences(there, read_here(self.config))

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """No other study runs it meanwhile. One that does is waited for, so many seconds."""
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(self.directory.parent / f".{self.directory.name}.lock").acquire(timeout=patience)
        except Timeout:
            raise UserError(f"{self.directory}: another process is running this") from None
        with held:
            yield

    def cleared(self, anew: bool) -> Stage:
        """How far it is, after what is of no use has been removed."""
        if self.directory.exists() and (anew or not (self.directory / "config.toml").is_file()):
            shutil.rmtree(self.directory)
        if not self.directory.exists():
            return "new"
        return "finished" if self.is_finished else "begun"


def stages(cells: Sequence[Cell], overwrite: bool = False) -> list[Stage]:
    """How far each is. A refusal names all the cells that it concerns, and comes before anything is removed."""
    if foreign := [cell for cell in cells if cell.is_foreign]:
        raise UserError(f"{_places(foreign)}: not a run directory; choose another (out)")
    changed = [cell.changed() for cell in cells]
    other = [cell for cell, keys in zip(cells, changed, strict=True) if keys]
    if other and not overwrite:
        keys = ", ".join(sorted({key for keys in changed for key in keys}))
        raise UserError(
            f"{_places(other)} {'was' if len(other) == 1 else 'were'} made with other settings ({keys}): "
            "choose another (out), or replace such runs (overwrite)"
        )
    return [cell.cleared(bool(keys)) for cell, keys in zip(cells, changed, strict=True)]


def _places(cells: Sequence[Cell]) -> str:
    return ", ".join(str(cell.directory) for cell in cells)


def cells(
    recipe: Path,
    variants: Sequence[Variant],
    seeds: Iterable[int],
    out: Path,
    overrides: Sequence[str] = (),
    budget: float | None = None,
    tuned: Mapping[str, Sequence[str]] | None = None,
    allow_code: bool = False,
    option: str = "--set",
) -> list[Cell]:
    """The grid, seed by seed, so that all methods can be compared as soon as the first seed is done.

    `option` is where the user wrote the overrides.
    """
    load(recipe, allow_code=allow_code)  # what is wrong with the file itself shows here
    table = read(recipe)
    for key in map(key_of, overrides):
        check_left_to_studies("algorithm.name" if key == "algorithm" else key, option)
    grid = []
    for seed in seeds:
        for variant in variants:
            found = (tuned or {}).get(variant.label, ())
            own = [f"algorithm.name={variant.method}", *overrides, *variant.changes, *found]
            whole = override(table, [*own, f"seed={seed}"], option)
            config = parse(whole, f"{recipe.name} with {variant.label}", overrides, option)
            config = config if budget is None else config.scaled(budget)
            config = vouched(config, start_of(config.model))
            grid.append(Cell(variant.label, seed, config, out / variant.label / f"seed-{seed}"))
    return grid


def own_method(recipe: Path, allow_code: bool) -> str:
    return load(recipe, allow_code=allow_code).algorithm.name
