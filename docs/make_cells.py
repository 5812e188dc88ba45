"""Puts runs of the paper's tables into docs/results/paper-fleet: each cell's archive, picture, live page and tables.

    make cells RUNS=runs/tables CELLS="lenet-cifar-10 cnn-cifar-10"

The sentences around the tables are written by hand: read them again when the numbers change.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from fedasmu.errors import UserError
from fedasmu.report.league import League, find, leagues
from fedasmu.report.tables import Grid, main_table
from fedasmu.report.writing import write_report
from fedasmu.run.result import Result
from fedasmu.study import versus
from fedasmu.study.studies import STUDIES, Part

CELLS = Path(__file__).parent / "results" / "paper-fleet"
KEPT = ("config.toml", "events.jsonl", "fleet.csv", "metrics.csv", "summary.json")
LONG = 5000  # uploads, of which the events would be most of this repository


def table_of(cell: str) -> tuple[str, Part]:
    """Which of the paper's tables it is a part of."""
    for name in ("table1", "table2"):
        for part in STUDIES[name].parts:
            if part.title == cell:
                return name, part
    raise UserError(f"{cell}: no cell of the paper's tables")


def tables(cell: str, league: League) -> list[Grid]:
    """What stands on its page: who ended where, and the paper's leads beside ours."""
    name, part = table_of(cell)
    return [main_table(league), versus.cell(STUDIES[name], name, part, league)]


def archive(directory: Path, target: Path) -> None:
    """Without models, and of long runs without events; the same runs give the same bytes."""
    long = any(Result(path.parent).summary["uploads"] >= LONG for path in directory.glob("*/seed-*/summary.json"))
    kept = [name for name in KEPT if not (long and name == "events.jsonl")]

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz") as file:
        for path in sorted(directory.glob("*/seed-*/*")):
            if path.name in kept:
                file.add(path, Path(directory.name) / path.relative_to(directory), filter=plain)


def replaced(page: str, grids: list[Grid]) -> str:
    """The page with these tables where those are that begin with the same column, and with the first one's note."""
    for grid in grids:
        rows, _, note = grid.markdown().partition("\n\n")[2].partition("\n\n")
        page = _once(rf"^\| {grid.header[0]} \|.*\n(?:\|.*\n)+", rows + "\n", page)
        if grid is grids[0]:
            page = _once(r"^(Means over|One seed).*$", note.strip(), page)
    return page


def _once(pattern: str, new: str, text: str) -> str:
    text, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{count} places look like {pattern} where one was expected")
    return text


def put(runs: Path, cell: str) -> None:
    """The picture, the live page and the tables are made from the archive: it has all that they need."""
    kept = CELLS / f"{cell}-runs.tar.xz"
    table_of(cell)  # before an archive is replaced: a wrong name is in no table, or has no runs
    find([runs / cell])
    archive(runs / cell, kept)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(kept) as file:
            file.extractall(folder, filter="data")
        report = write_report(Path(folder) / cell)
        (curves,) = report.glob("curves-*.png")
        shutil.copy(curves, CELLS / f"{cell}.png")
        shutil.copy(report / "report.html", CELLS / f"{cell}-runs.html")
        (league,) = leagues(find([Path(folder) / cell], lambda _: None))
        grids = tables(cell, league)
    page = CELLS / f"{cell}.md"
    page.write_text(replaced(page.read_text(), grids))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    for cell in sys.argv[2:]:
        try:
            put(Path(sys.argv[1]), cell)
        except UserError as error:
            raise SystemExit(f"error: {error}") from None
