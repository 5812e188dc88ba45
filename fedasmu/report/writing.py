"""Everything that a report consists of, written into one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedasmu.errors import UserError
from fedasmu.report import figures, latex, tables
from fedasmu.report.league import League, find, leagues
from fedasmu.report.page import page_of
from fedasmu.storage.record import make_folder


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    reference: str = "",
    say: Callable[[str], None] = lambda message: None,
) -> Path:
    """Tables, figures and a page from the finished runs in or below these directories; the folder they are in."""
    directories = [runs] if isinstance(runs, str | Path) else list(runs)
    folder = Path(directories[0]) / "report" if out is None else Path(out)
    write(leagues(find(directories, say), reference), folder)
    return folder


def write(found: Sequence[League], out: Path) -> list[Path]:
    """The files that are new: the folder may have others, of an earlier report for one."""
    make_folder(out)
    if links := [path for path in (out, *out.iterdir()) if path.is_symlink()]:
        raise UserError(f"{links[0]} leads elsewhere, where nothing is to be overwritten; choose another folder")
    grids = [table(league) for league in found for table in (tables.main_table, tables.communication_table)]
    (out / "tables.md").write_text("\n".join(grid.markdown() for grid in grids))
    (out / "results.csv").write_text(tables.write_csv(found))
    (out / "table.tex").write_text(latex.table(found))
    drawn = figures.draw(found, out)
    page_of(found, out / "report.html")
    return sorted([*drawn, *(out / name for name in ("tables.md", "results.csv", "table.tex", "report.html"))])
