"""What a run shows while it goes on: a live bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import progress
from rich.console import Console

from fedasmu.measure import Metric

if TYPE_CHECKING:
    from fedasmu.events import Event, Measured
    from fedasmu.server.desk import Desk

    Observer = Callable[[Desk, Event | Measured], None]

QUIET_INTERVAL = 10.0  # seconds between two lines where there is no terminal
WIDE = 100  # columns in which a run's whole status has room beside its bar


def bars(console: Console, *more: progress.ProgressColumn) -> progress.Progress:
    """Bars with a status each, which vanish when all is done. Where there is no terminal they are not shown."""
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None if console.width >= WIDE or not more else 8),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[status]}", style="cyan"),
        *([progress.TimeElapsedColumn()] if console.width >= WIDE or not more else []),
        *more,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Live:
    """Follows one run. Hand `observe` to `Experiment.run`."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self._said = time.monotonic()
        left = [progress.TextColumn("left", style="dim")] if console.width >= WIDE else []
        self._bar = bars(console, *left, progress.TimeRemainingColumn())
        self._task = self._bar.add_task("uploads", total=total, status="starting")

    @contextmanager
    def shown(self) -> Iterator[Live]:
        with self._bar:
            yield self

    def say(self, message: str) -> None:
        self.console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def observe(self, desk: Desk, line: Event | Measured) -> None:
        server, latest, now = desk.server, desk.meter.latest, time.monotonic()
        score = "..." if latest is None else Metric(desk.meter.metric).shown(latest.score, 3)
        if latest is not None and latest.subset:
            score += f" (on {latest.subset:,} test examples)"
        version = f"  version {server.model.version}" if self.console.width >= WIDE else ""
        status = f"t = {line.time:,.0f} s{version}  {desk.meter.metric} {score}  staleness {desk.mean_staleness:.1f}"
        if self.console.is_terminal:
            self._bar.update(self._task, completed=server.counters.received, status=status)
        elif now - self._said > QUIET_INTERVAL:
            self._said = now
            self.console.print(f"{server.counters.received}/{self.total} uploads  {status}", highlight=False)

    def beside(self, observe: Observer | None) -> Observer:
        """Follows, and lets somebody else follow too."""

        def both(desk: Desk, line: Event | Measured) -> None:
            self.observe(desk, line)
            if observe is not None:
                observe(desk, line)

        return both

    def also(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Says it here, and to somebody else."""

        def both(message: str) -> None:
            self.say(message)
            say(message)

        return both
