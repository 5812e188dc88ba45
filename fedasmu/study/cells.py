"""The cells of a study: one method with its settings and one seed, in a run directory of its own.

A cell is an ordinary run: DIR/<label>/seed-<k> can be looked at, resumed and repeated like any other.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedasmu.algorithms import named
from fedasmu.config import WITHOUT_INFLUENCE, Config
from fedasmu.errors import UserError
from fedasmu.recipe import load, override, parse, read
from fedasmu.record import BEFORE
from fedasmu.result import flat
from fedasmu.start import start_of, vouched
from fedasmu.study.variants import Variant

STRAY = BEFORE | {"fleet.csv", "error.txt"}  # of a run that was killed before it began
Standing = Literal["new", "begun", "finished"]


@dataclass(frozen=True)
class Cell:
    label: str
    seed: int
    config: Config
    directory: Path
    track: tuple[str, ...] = ()  # the trackers that follow it

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"

    def standing(self, overwrite: bool = False) -> Standing:
        """How far it is. What was made with other settings is refused, or removed."""
        if not self.directory.exists():
            return "new"
        if not (self.directory / "config.toml").is_file():
            if {path.name for path in self.directory.iterdir()} <= STRAY:
                shutil.rmtree(self.directory)
                return "new"
            raise UserError(f"{self.directory}: not a run directory; choose another (out)")
        there = load(self.directory / "config.toml", allow_code=self.config.code.values())
        if changed := differences(there, self.config):
            if not overwrite:
                raise UserError(
                    f"{self.directory} was made with other settings ({', '.join(changed)}): "
                    "choose another (out), or replace such runs (overwrite)"
                )
            shutil.rmtree(self.directory)
            return "new"
        return "finished" if (self.directory / "summary.json").is_file() else "begun"


def cells(
    recipe: Path,
    variants: Sequence[Variant],
    seeds: Iterable[int],
    out: Path,
    overrides: Sequence[str] = (),
    budget: float | None = None,
    tuned: Mapping[str, Sequence[str]] | None = None,
    allow_code: bool = False,
) -> list[Cell]:
    """The grid, seed by seed, so that all methods can be compared as soon as the first seed is done."""
    load(recipe, allow_code=allow_code)  # what is wrong with the file itself shows here
    table = read(recipe)
    if any(change.partition("=")[0].strip() in ("algorithm", "algorithm.name") for change in overrides):
        raise UserError("--set algorithm.name: --methods says which methods to run")
    grid = []
    for seed in seeds:
        for variant in variants:
            found = list((tuned or {}).get(variant.label, ()))
            changes = [*overrides, *found, *variant.changes, f"seed={seed}"]
            whole = override(_with_method(table, variant.method), changes)
            config = parse(whole, f"{recipe.name} with {variant.label}", overrides)
            config = config if budget is None else config.scaled(budget)
            config = vouched(config, start_of(config.model))
            grid.append(Cell(variant.label, seed, config, out / variant.label / f"seed-{seed}"))
    return grid


def own_method(recipe: Path, allow_code: bool) -> str:
    return load(recipe, allow_code=allow_code).algorithm.name


def _with_method(table: dict[str, Any], method: str) -> dict[str, Any]:
    """The recipe for another method. An ablation of the recipe's own method keeps the settings that it has there."""
    before = table.get("algorithm", {})
    before = {"name": before} if isinstance(before, str) else before
    kept = before if _same_class(str(before.get("name")), method) else {}
    return table | {"algorithm": {**kept, "name": method}}


def _same_class(one: str, other: str) -> bool:
    try:
        return named(one) is named(other)
    except ValueError:
        return False


def differences(there: Config, wanted: Config) -> list[str]:
    """The settings in which two runs differ, as far as they can change a result."""
    old, new = (flat(tomllib.loads(config.toml())) for config in (there, wanted))
    ignored = set(WITHOUT_INFLUENCE)
    if wanted.data.split == "user" or ":" in wanted.data.name:
        ignored.add("fleet.devices")  # the data decide how many there are
    return sorted(key for key in {*old, *new} - ignored if old.get(key) != new.get(key))
