"""Runs brought together: seeds of one method into a standing, methods on one task into a league.

A task is everything but the method: model, data, fleet, pacing, budget. Two runs whose directory is <label>/seed-<k>
are told apart by that label; others by their method and, where that is not enough, by the settings that differ.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedasmu.algorithms import ORDER
from fedasmu.errors import UserError, printable, reading
from fedasmu.measure import Metric
from fedasmu.report.labels import check_reference, kept_order
from fedasmu.report.sound import sound
from fedasmu.report.standing import Run, Standing
from fedasmu.run.result import Result
from fedasmu.settings.config import WITHOUT_INFLUENCE
from fedasmu.storage.record import SERVED

UNIMPORTANT = {"seed", *WITHOUT_INFLUENCE}  # for telling methods apart


@dataclass(frozen=True)
class League:
    """All methods on one task; the first one is what the others are measured against."""

    title: str
    settings: dict[str, str]  # of the task
    standings: tuple[Standing, ...]

    @property
    def targets(self) -> list[float]:
        return sorted({float(target) for standing in self.standings for target in _targets(standing)})

    @property
    def metric(self) -> Metric:
        return self.reference.metric

    @property
    def reference(self) -> Standing:
        return self.standings[0]

    @cached_property
    def clock(self) -> str:
        return clock_of([run.result for standing in self.standings for run in standing.runs])

    @cached_property
    def common_time(self) -> float:
        """The time that every run reached: after as many uploads, those that wait for no one are done first."""
        return min(float(run.result.curve["time"][-1]) for standing in self.standings for run in standing.runs)

    def times_as_long(self, standing: Standing, target: float) -> float:
        """How many times the reference's time this method needs; NaN if either never got there."""
        mine, first = standing.reach(target).median, self.reference.reach(target).median
        return mine / first if math.isfinite(mine) and math.isfinite(first) and first > 0 else math.nan

    def named(self, label: str) -> Standing | None:
        return next((standing for standing in self.standings if standing.label == label), None)


def clock_of(timed: Iterable[League | Result]) -> str:
    """What their times are; of simulated and served ones side by side, just time."""
    clocks = {one.clock for one in timed}
    return clocks.pop() if len(clocks) == 1 else "time"


def target_of(league: League, standings: Sequence[Standing] = ()) -> float | None:
    """Where only one target can be shown: the one that most methods reach, the hardest of these."""
    compared = standings or league.standings

    def reached(target: float) -> int:
        return sum(math.isfinite(standing.reach(target).median) for standing in compared)

    return max(league.targets, key=lambda target: (reached(target), league.metric.better(target)), default=None)


def _targets(standing: Standing) -> Iterable[str]:
    return (target for run in standing.runs for target in run.result.summary["time_to"])


def find(directories: Sequence[str | Path], say: Callable[[str], None] = print) -> list[Result]:
    """Every finished run in or below these directories. Says which ones are broken or go on, and leaves these out."""
    found: dict[Path, Result] = {}
    timed = 0
    for directory in map(Path, directories):
        if not directory.is_dir():
            what = "not a directory" if directory.exists() else "no such directory"
            raise UserError(f"{directory}: {what}; give run directories, or folders of them")
        for path in sorted(directory.rglob("summary.json")):
            if _is_of_times_alone(result := Result(path.parent)):
                timed += 1
            elif (path.parent / "metrics.csv").is_file():
                found.setdefault(path.parent.resolve(), result)
        for trouble in sorted(directory.rglob("error.txt")):
            if not (trouble.parent / "summary.json").is_file():
                say(f"failed, so not in here: {printable(str(trouble.parent))}: {_last_line(trouble)}")
        if unfinished := _unfinished(directory):
            first, more = printable(str(unfinished[0])), len(unfinished) - 1
            command = "serve --resume" if (unfinished[0] / SERVED).exists() else "resume"
            also = f" and {more} more" if more else ""
            say(f"unfinished, so not in here: {first}{also} (`fedasmu {command} {first}` goes on with it)")
    kept = sound(found.values(), say)
    if bare := sum(not result.has_events for result in kept):
        say(f"{bare} of {len(kept)} runs without events.jsonl: what is told from events is not shown of them")
    for one, other in _repeated(kept):
        say(
            f"left out: {printable(str(other.directory))}: it has the settings and the seed of "
            f"{printable(str(one.directory))}, and other numbers: was code or data of your own another, or the version "
            f"of fedasmu? As <label>/seed-{other.config['seed']} each is a row of its own"
        )
    if kept and timed:
        say(f"{timed} {'run' if timed == 1 else 'runs'} of times alone (timing_only), so not in here")
    if not kept:
        whole = "" if not found else " that can be read"
        trained = f"; {timed} simulated the order of events alone (timing_only)" if timed else ""
        raise UserError(f"{', '.join(map(str, directories))}: no finished run there{whole}{trained}")
    return kept


def _repeated(results: Iterable[Result]) -> Iterator[tuple[Result, Result]]:
    """Runs that have the place of an earlier one in a league, and are no copies of it."""
    first: dict[tuple[object, ...], Run] = {}
    for run in map(_labelled, results):
        asked = sorted((key, str(value)) for key, value in run.settings.items() if key not in WITHOUT_INFLUENCE)
        one = first.setdefault((run.label, run.task, *asked), run)
        if run is not one and not run.has_numbers_of(one):
            yield one.result, run.result


def _unfinished(directory: Path) -> list[Path]:
    """Runs that have begun and neither ended nor failed."""
    begun = sorted(path.parent for path in directory.rglob("config.toml") if (path.parent / "metrics.csv").is_file())
    return [one for one in begun if not any((one / end).is_file() for end in ("summary.json", "error.txt"))]


def _is_of_times_alone(result: Result) -> bool:
    with suppress(UserError):  # of a broken summary, `sound` says what is wrong
        return result.is_of_times_alone
    return False


def _last_line(path: Path) -> str:
    with reading(path):
        lines = path.read_text(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else "no reason is known"


def leagues(results: Sequence[Result], reference: str = "") -> list[League]:
    """One for every task: methods in the order in which `fedasmu compare` was given them, others as in the catalogue.

    The reference goes before all of them. Without one it is the first that was given, or else fedasmu where it was run.
    """
    tasks: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in map(_labelled, results):
        tasks[run.task].append(run)
    order = _given(results)
    settings, groups = [dict(task) for task in tasks], [_grouped(runs) for runs in tasks.values()]
    labels = {label: None for group in groups for label in group}
    check_reference(reference, labels)
    ahead = [reference or ("" if order else "fedasmu"), *order]
    return [
        League(title, task, _standings(group, ahead))
        for title, task, group in zip(_titles(settings), settings, groups, strict=True)
    ]


def _labelled(result: Result) -> Run:
    of_a_study = re.fullmatch(r"seed-\d+", result.directory.name)
    label = result.directory.absolute().parent.name if of_a_study else result.summary["method"]
    return Run(result, printable(label))


def _given(results: Sequence[Result]) -> list[str]:
    """The labels as the comparisons that these runs belong to were given them."""
    folders = dict.fromkeys(result.directory.absolute().parent.parent for result in results)
    return list(dict.fromkeys(label for folder in folders for label in kept_order(folder)))


def _grouped(runs: list[Run]) -> dict[str, list[Run]]:
    """By label, and in the order of their seeds."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(_told_apart(runs), key=lambda run: run.seed):
        if all(run.seed != other.seed for other in groups[run.label]):  # the same run in two places counts once
            groups[run.label].append(run)
    return groups


def _standings(groups: dict[str, list[Run]], ahead: Sequence[str]) -> tuple[Standing, ...]:
    def rank(label: str) -> tuple[int, int, str]:
        method = groups[label][0].result.summary["method"]
        place = ahead.index(label) if label in ahead else len(ahead)
        return place, ORDER.get(method, len(ORDER)), label

    return tuple(Standing(label, tuple(groups[label])) for label in sorted(groups, key=rank))


def _told_apart(runs: list[Run]) -> list[Run]:
    """Where one label covers different settings, the label says which."""
    settings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        settings[run.label].append({key: value for key, value in run.settings.items() if key not in UNIMPORTANT})
    return [Run(run.result, _longer(run, settings[run.label])) for run in runs]


def _longer(run: Run, others: list[dict[str, Any]]) -> str:
    differing = differing_keys(others)
    shown = (f"{key.rpartition('.')[2]}={run.settings.get(key, 'default')}" for key in differing)
    return f"{run.label} ({', '.join(shown)})" if differing else run.label


def differing_keys(tables: Sequence[dict[str, Any]]) -> list[str]:
    keys = sorted({key for table in tables for key in table})
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def _titles(tasks: Sequence[dict[str, str]]) -> list[str]:
    """Model and data, and as few further settings as tell the tasks apart: named environments before single keys."""
    chosen: list[str] = ["model.name", "data.name"]
    for key in sorted(differing_keys(tasks), key=lambda key: not key.endswith(".preset")):
        if _distinct(tasks, [*chosen, key]) > _distinct(tasks, chosen):
            chosen.append(key)
    return [
        ", ".join([" on ".join(task[key] for key in chosen[:2]), *(_shown(task, key) for key in chosen[2:])])
        for task in tasks
    ]


def _distinct(tasks: Sequence[dict[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(task.get(key) for key in keys) for task in tasks})


def _shown(task: dict[str, str], key: str) -> str:
    value = task.get(key, "default")
    if key.endswith("_sha256"):
        return f"{key} = {value[:12]}"
    return value if key.endswith(".preset") else f"{key} = {value}"
