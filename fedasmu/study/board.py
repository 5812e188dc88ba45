"""What a study shows while it goes on: one bar for the whole, one for every cell under way, and what remains."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from fedasmu.run.progress import QUIET_INTERVAL, bars
from fedasmu.study.cells import Cell


@dataclass
class Seen:
    """One cell: how far it is, and what this session has done for it."""

    uploads: int = 0
    first: int = 0  # uploads that an earlier session had done
    began: float = 0.0
    seconds: float = 0.0
    over: bool = False
    bar: TaskID | None = None


class Estimate:
    """How long the rest will take, from the seconds that an upload of each method on each task took so far."""

    def __init__(self, cells: Sequence[Cell], workers: int) -> None:
        self.workers = workers
        self.seen = {cell.directory: Seen() for cell in cells}
        self.cells = list(cells)

    def left(self) -> float | None:
        """Seconds; None as long as nothing is known."""
        seconds: dict[tuple[str, ...], float] = defaultdict(float)
        uploads: dict[tuple[str, ...], int] = defaultdict(int)
        for cell in self.cells:
            seen = self.seen[cell.directory]
            if seen.uploads > seen.first:
                for like in _likenesses(cell):
                    seconds[like] += seen.seconds
                    uploads[like] += seen.uploads - seen.first
        if not uploads:
            return None
        work = []
        for cell in (cell for cell in self.cells if not self.seen[cell.directory].over):
            like = next(like for like in _likenesses(cell) if like in uploads)
            missing = cell.config.stop.uploads - self.seen[cell.directory].uploads
            work.append(missing * seconds[like] / uploads[like])
        return max(sum(work) / self.workers, max(work, default=0.0))


def _likenesses(cell: Cell) -> tuple[tuple[str, ...], ...]:
    """What a cell has in common with others whose cost is known, the most telling first: all, the task, nothing."""
    task = cell.config.model.name, cell.config.data.name
    return (*task, cell.label), task, ()


class Board:
    def __init__(self, console: Console) -> None:
        self.console = console
        self._said = time.monotonic()
        self._told: set[str] = set()
        self._bar = bars(console)

    @contextmanager
    def shown(self, due: Sequence[Cell], workers: int, finished: int) -> Iterator[None]:
        self._estimate = Estimate(due, workers)
        self._total = sum(cell.config.stop.uploads for cell in due)
        self._all = self._bar.add_task("all uploads", total=self._total, status="")
        if finished:
            self._print(f"{finished} of {finished + len(due)} runs are finished already")
        with self._bar:
            yield

    def started(self, cell: Cell) -> None:
        seen = self._estimate.seen[cell.directory]
        seen.began = time.monotonic()
        seen.bar = self._bar.add_task(f"  {cell}", total=cell.config.stop.uploads, status="")

    def heard(self, cell: Cell, message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "say":  # the same news from every cell is news once
            if value not in self._told:
                self._told.add(value)
                self._print(value)
            return
        seen = self._estimate.seen[cell.directory]
        if not seen.uploads:
            seen.first, seen.began = value, time.monotonic()  # what came before was loading, or an earlier session
        seen.uploads, seen.seconds = value, time.monotonic() - seen.began
        if seen.bar is not None:
            self._bar.update(seen.bar, completed=value)
        self.refresh()

    def ended(self, cell: Cell, how: str) -> None:
        seen = self._estimate.seen[cell.directory]
        seen.over = how != "stopped"
        if how == "finished":
            seen.uploads, seen.seconds = cell.config.stop.uploads, time.monotonic() - seen.began
        if seen.bar is not None:
            self._bar.remove_task(seen.bar)
        self._print(f"{how}: {cell} ({self._status()})")

    def refresh(self) -> None:
        done, now = sum(seen.uploads for seen in self._estimate.seen.values()), time.monotonic()
        if self.console.is_terminal:
            self._bar.update(self._all, completed=done, status=self._status())
        elif now - self._said > QUIET_INTERVAL:
            self._print(f"{done:,}/{self._total:,} uploads, {self._status()}")

    def _status(self) -> str:
        left = self._estimate.left()
        rest = "" if left is None else f", about {duration(left)} left"
        over = [seen.over for seen in self._estimate.seen.values()]
        return f"{sum(over)}/{len(over)} runs{rest}"

    def _print(self, line: str) -> None:
        self._said = time.monotonic()
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
