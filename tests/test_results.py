"""The published tables are those of the runs that lie beside them."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from fedasmu.report.league import find, leagues
from fedasmu.report.numbers import reached
from fedasmu.report.standing import Standing
from helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from make_cells import tables

OVERVIEW = ROOT / "docs/results/paper-fleet.md"
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
    cell = archive.name.removesuffix("-runs.tar.xz")
    page = (CELLS / f"{cell}.md").read_text()
    rows = [line for grid in tables(cell, league) for line in grid.markdown().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 11 + 2 + 10
    assert [line for line in rows if line not in page] == []


def test_the_table_of_calibrated_methods_is_that_of_its_runs(tmp_path: Path) -> None:
    found = {}
    for name in ("runs", "calibrated", "uncalibrated"):
        with tarfile.open(CELLS / f"lenet-cifar-10-{name}.tar.xz") as file:
            file.extractall(tmp_path / name, filter="data")
        (found[name],) = leagues(find([tmp_path / name], lambda line: None))
    pairs: list[tuple[Standing | None, Standing | None]] = [
        (found["runs"].named(one.label), one) for one in found["calibrated"].standings
    ]
    pairs.append((found["uncalibrated"].named("fedasmu-r-calibrate-false"), found["runs"].named("fedasmu-r")))
    pairs.append((found["uncalibrated"].named("fedasmu-r-calibrate-false-stride-0"), None))
    rows = []
    for without, calibrated in pairs:
        assert without is not None
        both = (without, calibrated)
        told = [f"{one.score:.3f} ± {one.spread:.3f}" if one else "" for one in both]
        told += [(reached(one.reach(target)) or "not reached") if one else "" for target in (0.3, 0.6) for one in both]
        rows.append(f" | {' | '.join(told)} |".replace("|  |", "| |"))
    assert len(rows) == 7
    assert [row for row in rows if row not in OVERVIEW.read_text()] == []
