"""The commands that read run directories: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import loading, say, show_grid
from fedasmu.errors import UserError, reading

Reference = Annotated[
    str,
    typer.Option(metavar="LABEL", help="What the others are measured against; fedasmu or the first unless given."),
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
    from fedasmu.report import figures, latex, tables
    from fedasmu.report.league import find, leagues
    from fedasmu.report.lessons import lesson
    from fedasmu.report.page import page_of

    found = leagues(find(directories, say), reference)
    out = out or directories[0] / "report"
    with reading(out):
        out.mkdir(parents=True, exist_ok=True)
        if links := [path for path in (out, *out.iterdir()) if path.is_symlink()]:
            raise UserError(f"{links[0]} leads elsewhere, where nothing is to be overwritten; choose another --out")
    grids = [make(league) for league in found for make in (tables.main_table, tables.communication_table)]
    (out / "tables.md").write_text("\n".join(grid.markdown() for grid in grids))
    (out / "results.csv").write_text(tables.write_csv(found))
    (out / "table.tex").write_text(latex.table(found))
    figures.draw(found, out)
    page_of(found, out / "report.html")
    for league in found:
        show_grid(tables.main_table(league))
        say(lesson(league))
    for path in sorted(out.iterdir()):
        say(str(path))
