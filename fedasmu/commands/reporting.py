"""The commands that read run directories: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import loading, say, show_grid

Reference = Annotated[
    str,
    typer.Option(
        metavar="LABEL",
        help="What the others are measured against; unless given the first of the comparison, or fedasmu.",
    ),
]
REPORT_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu report runs/compare-quickstart

  fedasmu report runs/base runs/het110 --out report --reference fedavg
"""


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it goes; report/ in the first DIR unless given.")
    ] = None,
    reference: Reference = "",
) -> None:
    """Make tables, figures and a page to look at from run directories alone."""
    loading()
    from fedasmu.report import tables
    from fedasmu.report.league import find, leagues
    from fedasmu.report.lessons import lesson
    from fedasmu.report.writing import write

    found = leagues(find(directories, say), reference)
    out = out or directories[0] / "report"
    written = write(found, out)
    for league in found:
        show_grid(tables.main_table(league))
        say(lesson(league))
    for path in written:
        say(str(path))
