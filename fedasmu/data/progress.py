"""A progress bar on standard error, for the slow things: downloads and decoding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class Advance(Protocol):
    def __call__(self, amount: int = 1) -> None: ...


@dataclass(frozen=True)
class Progress:
    shown: bool = True

    @contextmanager
    def bar(self, label: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Advance]:
        """Yields a function that moves the bar on. Silent where nobody watches: in a pipe, a log, a test."""
        if not (self.shown and sys.stderr.isatty()):
            yield _ignore
            return
        from rich import progress as rich_progress
        from rich.console import Console

        amount = rich_progress.DownloadColumn() if in_bytes else rich_progress.MofNCompleteColumn()
        columns = (
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            amount,
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=total)
            yield lambda amount=1: bars.advance(task, amount)


def _ignore(amount: int = 1) -> None:
    del amount
