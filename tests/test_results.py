"""The published tables are those of the runs that lie beside them."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from fedasmu.report.league import find, leagues
from helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from make_cells import tables

CELLS = ROOT / "docs/results/paper-fleet"
ARCHIVES = sorted(CELLS.glob("*-runs.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=[path.name for path in ARCHIVES])
def test_a_table_on_the_page_is_that_of_its_runs(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    said: list[str] = []
    (league,) = leagues(find([tmp_path], said.append))
    assert all(
        "runs without events.jsonl" in line for line in said
    )  # of the long ones they would be most of this repository
    page = (CELLS.parent / "paper-fleet.md").read_text()
    cell = archive.name.removesuffix("-runs.tar.xz")
    rows = [line for grid in tables(cell, league) for line in grid.markdown().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 11 + 2 + 10
    assert [line for line in rows if line not in page] == []
