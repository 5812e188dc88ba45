"""The groups of commands, and what they share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fedasmu.errors import UserError, printable

if TYPE_CHECKING:
    from fedasmu.report.tables import Grid

console = Console()
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let the recipe name code, as package.module:name: it is then a program.")
]


def say(line: str) -> None:
    """A line that holds a path or a command: never broken, so that it can be copied."""
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def show_grid(grid: Grid) -> None:
    """One table, or several below each other where the terminal is too narrow for one."""
    view = console if console.is_terminal else Console(width=160)
    for part in grid.parts(view.width):
        view.print(part.rich())
    if grid.note:
        say(grid.note)


def worker_count(text: str) -> int | Literal["inline"]:
    if text == "inline":
        return "inline"
    if not text:
        return max(1, len(os.sched_getaffinity(0)))
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--workers {text}: must be a number, 1 or more, or inline")
    return int(text)
