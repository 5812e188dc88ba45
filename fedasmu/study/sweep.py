"""What a sweep finds: each method with every setting of a grid, judged on training data that is held out.

The test data are never looked at. What is best for each method goes to tuned.json, for `fedasmu compare --tuned`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedasmu.errors import UserError
from fedasmu.imports import agree, named_code
from fedasmu.measure import ACCURACY
from fedasmu.report.league import find, leagues
from fedasmu.report.numbers import plus_minus
from fedasmu.report.standing import Standing
from fedasmu.report.tables import Grid
from fedasmu.settings.recipe import key_of, load, override
from fedasmu.storage.record import check_writable
from fedasmu.study import spaces
from fedasmu.study.cells import Cell, cells
from fedasmu.study.variants import Variant
from fedasmu.system.disk import write_whole

HELD_OUT = 0.1
FILE = "tuned.json"


def held_out(overrides: Sequence[str]) -> list[str]:
    """The overrides of a sweep: a tenth of the training data to judge on, unless a share is given."""
    if any(key_of(text) == "data.held_out" for text in overrides):
        return list(overrides)
    return [*overrides, f"data.held_out={HELD_OUT}"]


def check(runs: Sequence[Cell]) -> None:
    """Refuse whatever would be judged on the test data, or could not be judged."""
    for cell in runs:
        if cell.config.timing_only:
            raise UserError("timing_only = true: a sweep judges models, and times alone leave none; it must be false")
        if not cell.config.data.held_out:
            raise UserError("data.held_out = 0: a sweep needs training data to judge on, a tenth for instance")
        if ":" in cell.config.data.name:
            raise UserError(
                f"data.name = {cell.config.data.name}: a sweep cannot hold out a part of data of your own; "
                "return your validation data as its test data, and compare the method with each setting on them"
            )


@dataclass(frozen=True)
class Tried:
    """One setting of one method."""

    method: str  # the label in the comparison that it is tuned for
    changes: tuple[str, ...]
    standing: Standing


def swept(
    recipe: Path,
    chosen: Sequence[Variant],
    seeds: Iterable[int],
    out: Path,
    changes: Sequence[str],
    trials: int | None,
    run: Callable[[list[Cell]], object],
    budget: float | None = None,
    allow_code: bool = False,
    option: str = "--set",
) -> list[Tried]:
    """What was tried, the best of each method first: the chosen variants, or so many trials of each of them.

    `run` runs cells. Refuses what would be judged on the test data.
    """

    def performed(variants: Sequence[Variant]) -> list[Cell]:
        runs = cells(recipe, variants, seeds, out, held_out(changes), budget, allow_code=allow_code, option=option)
        check(runs)
        run(runs)
        return runs

    check_writable(out)
    if any(key_of(change) == "data.held_out" for one in chosen for change in one.changes):
        raise UserError(
            "data.held_out: what is tried is judged on the same examples, and compared on the test data later; "
            f"give all one share, as in {option} data.held_out=0.2"
        )
    if trials is None:
        return tried(chosen, performed(chosen))
    spaces.check(trials)
    rate = load(recipe, changes, option, allow_code=allow_code).local.lr
    first = spaces.with_rates(chosen, rate, trials)
    runs = performed(first)
    found = best(tried(first, runs))
    more = spaces.with_settings([one for one in chosen if one.label in found], found, rate, trials)
    return tried([*first, *more], [*runs, *(performed(more) if more else [])])


def tried(variants: Sequence[Variant], runs: Sequence[Cell]) -> list[Tried]:
    """What finished with all its seeds, the best setting of each method first."""
    directories = {cell.directory: cell.label for cell in runs}
    done = [cell.directory for cell in runs if cell.is_finished]
    standings: dict[str, Standing] = {}
    for league in leagues(find(done)) if done else []:
        standings |= {standing.label: standing for standing in league.standings}
    seeds = max(list(directories.values()).count(label) for label in directories.values())
    found: dict[str, list[Tried]] = defaultdict(list)
    for variant in variants:
        standing = standings.get(variant.label)
        if standing is not None and len(standing.runs) == seeds:
            base = variant.base or variant.label
            found[base].append(Tried(base, variant.changes, standing))
    return [
        one
        for group in found.values()
        for one in sorted(group, key=lambda one: -one.standing.metric.better(one.standing.score))
    ]


def best(results: Sequence[Tried]) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {}
    for one in results:
        chosen.setdefault(one.method, list(one.changes))
    return chosen


def at_an_edge(results: Sequence[Tried]) -> list[str]:
    """Of the best settings, the numbers that are the least or the largest that were tried. Beyond 0 is nothing."""
    keys = list(dict.fromkeys(key_of(change) for one in results for change in one.changes))
    values: dict[tuple[str, str], set[float]] = defaultdict(set)
    for one in results:
        for key, value in _numbers(one, keys):
            values[one.method, key].add(value)
    firsts = {one.method: one for one in reversed(results)}
    return [
        f"{one.method}: {key} = {value:g} is the {'least' if value == min(tried) else 'largest'} that was tried"
        for one in sorted(firsts.values(), key=results.index)
        for key, value in _numbers(one, keys)
        if len(tried := values[one.method, key]) > 1 and value in {min(tried), max(tried)} - {0}
    ]


def _numbers(one: Tried, keys: Sequence[str]) -> list[tuple[str, float]]:
    """Also those that the trial leaves as the recipe has them."""
    settings = one.standing.runs[0].settings
    return [(key, settings[key]) for key in keys if type(settings.get(key)) in (int, float)]  # true is no number


def for_each(chosen: Sequence[Variant], best: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """By label, the settings that were best for a variant, or for the one that it was made from, its own on top."""
    return {one.label: best.get(one.label, [*best.get(one.base, []), *one.changes]) for one in chosen}


def without(chosen: Sequence[Variant], best: Mapping[str, list[str]]) -> list[str]:
    """The labels of those for whom nothing was found: they run with the recipe's settings, untuned."""
    return [one.label for one in chosen if not {one.label, one.base} & set(best)]


def table(results: Sequence[Tried]) -> Grid:
    rows, seen = [], set()
    for one in results:
        first = one.method not in seen
        seen.add(one.method)
        score = plus_minus(one.standing)
        rows.append((one.method if first else "", " ".join(one.changes) or "as it is", score, "best" if first else ""))
    name = results[0].standing.metric.name if results else ACCURACY
    title = f"{name[0].upper()}{name[1:]} on held-out training data"
    return Grid(title, ("method", "settings", name, ""), tuple(rows))


def write(results: Sequence[Tried], recipe: str, out: Path) -> Path:
    lines = [
        {
            "method": one.method,
            "settings": list(one.changes),
            one.standing.metric.name: one.standing.score,
            "seeds": [run.seed for run in one.standing.runs],
            "runs": [str(run.result.directory) for run in one.standing.runs],
        }
        for one in results
    ]
    write_whole(out / FILE, json.dumps({"recipe": recipe, "best": best(results), "table": lines}, indent=1) + "\n")
    return out / FILE


def read(path: Path, allow_code: bool = False) -> dict[str, list[str]]:
    """The best settings by method, from a tuned.json or the directory that it is in."""
    path = path / FILE if path.is_dir() else path
    try:
        found: Any = json.loads(path.read_text())["best"]
        best = {str(method): [str(change) for change in changes] for method, changes in found.items()}
    except OSError as error:
        raise UserError(f"tuned = {path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"tuned = {path}: not what a sweep writes") from None
    for change in (change for changes in best.values() for change in changes):
        agree(named_code(override({}, [change])), path, allow_code)
    return best
