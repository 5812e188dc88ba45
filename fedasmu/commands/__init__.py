"""The groups of commands, and what they share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedasmu.errors import UserError, printable

if TYPE_CHECKING:
    from fedasmu.report.tables import Grid

console = Console(emoji=False)  # :100: in a path or an address is no picture
Recipe = Annotated[str, typer.Argument(help="A recipe: a TOML file, or a name from `fedasmu list recipes`.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="The seed that everything random is derived from.")]
Budget = Annotated[
    float | None, typer.Option(metavar="FACTOR", help="So many times the recipe's uploads and virtual time.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let the recipe name code, as package.module:name: it is then a program.")
]
WorkerCount = Annotated[
    str,
    typer.Option(
        "--workers",
        metavar="N|inline|ray",
        help="Worker processes, one a core unless given; inline: all in this one; ray: a Ray cluster.",
    ),
]


def say(line: str) -> None:
    """A line that holds a path or a command: never broken, so that it can be copied."""
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def show_grid(grid: Grid) -> None:
    """One table, or several below each other where the terminal is too narrow for one."""
    view = console if console.is_terminal else Console(width=160, emoji=False)
    for part in grid.parts(view.width):
        view.print(part.rich())
    if grid.note:
        say(grid.note)


def loading() -> None:
    """A word, and the seconds that it takes to import PyTorch; Ctrl-C then ends the command: nothing has begun."""
    if "torch" in sys.modules:
        return
    with _ended_by_interrupt():
        console.print("loading PyTorch ...", style="dim")
        gc.disable()  # of a hundred thousand new things none is garbage: looking for it takes a tenth of the time
        import torch  # noqa: F401

        gc.enable()


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C is one word and exit code 130: raised inside an import it could come out as anything, even a crash."""

    def end(number: int, frame: Any) -> None:
        os.write(sys.stderr.fileno(), b"stopped\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or somebody else's to answer
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def worker_count(text: str) -> int | str:
    if text in ("inline", "ray") or ":" in text:  # an address of a Ray cluster
        return text
    cores = max(1, len(os.sched_getaffinity(0)))
    if not text:
        return cores
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--workers {text}: must be a number, 1 or more, inline, ray, or a cluster's address")
    if int(text) > cores:
        say(f"--workers {text}: more than the {cores} cores there are; they take turns, and each needs its own memory")
    return int(text)


def needs_network() -> None:
    """Refuse, with the command to type, where the packages of the network are not installed."""
    try:
        import cryptography  # noqa: F401
        import httptools  # noqa: F401
        import starlette  # noqa: F401
        import urllib3  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is missing: run pip install 'fedasmu[network]'") from None
