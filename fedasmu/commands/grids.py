"""What every command does that makes many runs: they are run, shown in tables, and told of where they failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedasmu.commands import console, loading, say, show_grid, worker_count
from fedasmu.errors import Interrupted

if TYPE_CHECKING:
    from fedasmu.study.cells import Cell
    from fedasmu.study.grid import Failures

NAMED = 6  # cells that a failure is told of by name


def study_workers(text: str) -> int | str:
    """How many runs at once. What starts them begins to import now, beside this process."""
    count = worker_count(text)
    loading()
    if isinstance(count, int):
        from fedasmu.study.forking import start_method

        start_method()
    return count


def run_grid(grid: list[Cell], workers: int | str, overwrite: bool = False) -> Failures:
    """Run what is not finished."""
    from fedasmu.study.board import Board
    from fedasmu.study.grid import run

    try:
        return run(grid, workers, Board(console), overwrite)
    except Interrupted:
        say("stopped; everything so far is kept. The same command goes on from here.")
        raise SystemExit(130) from None  # its word has been said


def show(grid: list[Cell], reference: str = "") -> None:
    from fedasmu.report.league import find, leagues
    from fedasmu.report.lessons import lesson
    from fedasmu.report.tables import main_table

    directories = [cell.directory for cell in grid if cell.is_finished]
    for league in leagues(find(directories, say), reference) if directories else []:
        show_grid(main_table(league))
        say(lesson(league))


def show_times(grid: list[Cell]) -> None:
    from fedasmu.report.times import times_table
    from fedasmu.run.result import Result

    runs: dict[str, list[Result]] = {}
    for cell in grid:
        if cell.is_finished:
            runs.setdefault(cell.label, []).append(Result(cell.directory))
    show_grid(times_table(runs))


def report_failures(failed: Failures) -> None:
    """Each reason once. A cell that failed makes the exit code 1."""
    reasons: dict[str, list[Cell]] = {}
    for cell, reason in failed:
        reasons.setdefault(reason.strip().splitlines()[-1], []).append(cell)
    for reason, cells in reasons.items():
        more = f"; and {len(cells) - NAMED} more" if len(cells) > NAMED else ""
        named = "; ".join(map(str, cells[:NAMED]))
        say(f"failed: {named}{more}: {reason} (all of it: {cells[0].directory / 'error.txt'})")
    if failed:
        raise typer.Exit(1)
