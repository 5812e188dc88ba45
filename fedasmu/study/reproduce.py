"""A study of the paper, run through the grid, beside what the paper printed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedasmu import data
from fedasmu.errors import UserError
from fedasmu.report.league import League, find, leagues
from fedasmu.report.numbers import plus_minus, reached
from fedasmu.report.standing import Standing
from fedasmu.report.tables import Grid, seeds_of
from fedasmu.settings.recipe import key_of, load
from fedasmu.study import variants
from fedasmu.study.cells import Cell, cells
from fedasmu.study.judging import Found, target_of
from fedasmu.study.paper import printed
from fedasmu.study.studies import Budget, Part, Study
from fedasmu.study.sweep import for_each


@dataclass(frozen=True)
class Plan:
    cells: dict[Part, list[Cell]]
    left_out: dict[Part, str]  # with the reason

    @property
    def all_cells(self) -> list[Cell]:
        return [cell for grid in self.cells.values() for cell in grid]

    @property
    def spent(self) -> str:
        """What the cells are really given, overrides and all."""
        seeds = len({cell.seed for cell in self.all_cells})
        parts: dict[int, list[str]] = defaultdict(list)
        for part, grid in self.cells.items():
            parts[max(cell.config.stop.uploads for cell in grid)].append(part.title)
        uploads = [f"{count:,} upload{'s' * (count > 1)} for {', '.join(titles)}" for count, titles in parts.items()]
        return "; ".join([f"{seeds} seed{'s' * (seeds != 1)}", *uploads]) if parts else "nothing to run"


def plan(
    study: Study,
    budget: Budget,
    only: Collection[str],
    recipes: Path,
    out: Path,
    overrides: Sequence[str],
    tuned: Mapping[str, Mapping[str, list[str]]] | None = None,
) -> Plan:
    """`tuned`: the best settings of each method, by the title of a part."""
    known = [part.title for part in study.parts]
    for name in only:
        if name not in known:
            raise UserError(f"--only {name}: this study has: {', '.join(known)}")
    made, methods = Plan({}, {}), variants.read(study.methods)
    asked = any(key_of(text) == "stop.uploads" for text in overrides)  # then that many it is
    for part in study.parts:
        share, path = 1.0 if asked else budget.share(part.recipe), recipes / f"{part.recipe}.toml"
        if reason := _obstacle(part, only, path, share, overrides):
            made.left_out[part] = reason
            continue
        # Studies that have a part in common share its runs: the directory says nothing about the study.
        made.cells[part] = cells(
            path,
            methods,
            range(budget.seeds),
            out / part.title,
            [*part.changes, *overrides],
            share,
            for_each(methods, (tuned or {}).get(part.title, {})),
        )
    return made


def skipped(made: Plan) -> list[str]:
    """What is left out, a line a reason. That nothing is left to run is the user's to know before anything begins."""
    titles: dict[str, list[str]] = defaultdict(list)
    for part, reason in made.left_out.items():
        titles[reason].append(part.title)
    if not made.cells:
        raise UserError(f"nothing to run: {'; '.join(titles)}")
    return [f"not run: {', '.join(parts)}: {reason}" for reason, parts in titles.items()]


def _obstacle(part: Part, only: Collection[str], path: Path, share: float | None, overrides: Sequence[str]) -> str:
    if only and part.title not in only:
        return "--only names others"
    if not path.is_file():
        return f"there is no recipe {part.recipe}"
    name = load(path, overrides).data.name
    if ":" not in name and not data.is_here(name):
        return f"{name} is not on this machine: `fedasmu data prepare {name}` gets it"
    return "too slow for this budget" if share is None else ""


def measured(made: Plan) -> Found:
    """The parts of which anything is finished."""
    found: Found = {}
    for part, grid in made.cells.items():
        done = [cell.directory for cell in grid if cell.is_finished]
        if done:
            found[part] = _merged(leagues(find(done)), part.title)
    return found


def _merged(parts: list[League], title: str) -> League:
    """Where the environment is what varies (the period), the variants are still one league."""
    return League(title, parts[0].settings, tuple(standing for league in parts for standing in league.standings))


def titled(part: Part, league: League) -> str:
    """With the data that were really there, where they are not those that the recipe names: a part of them."""
    results = [run.result for standing in league.standings for run in standing.runs]
    other = {str(one.summary["data"]) for one in results} - {str(one.config["data"]["name"]) for one in results}
    return f"{part.title} (on {', '.join(sorted(other))})" if other else part.title


def beside(study: Study, name: str, part: Part, league: League) -> Grid:
    """One part: ours beside the paper's. Times can be compared as multiples of FedASMU's only: the clocks differ."""
    target = target_of(study, league)
    ours = {one.label: one.reach(target).median for one in league.standings}
    theirs = printed(name).get(part.recipe, {})
    times = {label: one.time for label, one in theirs.items()}
    rows = []
    for one in league.standings:
        row = [one.label, plus_minus(one), reached(one.reach(target)) or "/", _multiple(one, ours)]
        if one.label in theirs:
            time = f"{times[one.label]:,.0f}" if math.isfinite(times[one.label]) else "/"
            row += [f"{theirs[one.label].accuracy:.4f}", time, _multiple(one, times)]
        elif theirs:
            row += [""] * 3
        rows.append(tuple(row))
    head = ("accuracy", f"s to {target:g}", "x fedasmu")
    columns = ("method", *head, *(f"paper: {what}" for what in head if theirs))
    return Grid(titled(part, league), columns, tuple(rows), seeds_of(league))


def _multiple(one: Standing, times: Mapping[str, float]) -> str:
    """How many times as long as FedASMU."""
    mine, first = times[one.label], times.get("fedasmu", math.nan)
    return f"{mine / first:.2f}" if math.isfinite(mine) and 0 < first < math.inf else ""
