"""Cell by cell: FedASMU's leads in the paper, FedASMU's and FedASMU-R's here."""

from __future__ import annotations

from pathlib import Path

from fedasmu.report.league import League, find, leagues
from fedasmu.study import versus
from fedasmu.study.studies import STUDIES
from helpers.made_runs import made_run

STUDY = STUDIES["table2"]
PART = STUDY.parts[-1]  # LeNet on Fashion-MNIST, to 0.70


def league(directory: Path, **methods: float) -> League:
    """Three seeds, 0.1 % apart; 0.7 is reached at 100 s by those that can."""
    for method, accuracy in methods.items():
        for seed in range(3):
            name = method.replace("_", "-")
            made_run(directory / name / f"seed-{seed}", name, seed, [(100.0, accuracy + 0.001 * seed)])
    (found,) = leagues(find([directory]))
    return found


def test_a_cell_by_hand(tmp_path: Path) -> None:
    found = league(tmp_path, fedasmu=0.71, fedasmu_r=0.8, fedavg=0.6)
    grid = versus.cell(STUDY, "table2", PART, found)
    against = {row[0]: row[1:] for row in grid.rows}
    assert list(against) == ["fedasmu", "fedavg"]
    paper, ours, rebased, *_ = against["fedavg"]
    assert paper == "+12.3"
    assert ours.startswith("+11.0, ")
    assert rebased.startswith("+20.0, ")
    assert ours.endswith("holds")
    assert against["fedasmu"][:2] == ("", "")
    assert against["fedavg"][4].startswith("never, ")  # FedAvg does not reach 0.7


def test_our_form_is_counted_over_the_cells(tmp_path: Path) -> None:
    here = league(tmp_path / "here", fedasmu=0.71, fedasmu_r=0.8, fedavg=0.6)
    there = league(tmp_path / "there", fedasmu_r=0.5, fedavg=0.6)
    grid = versus.ours(STUDY, "table2", {PART: here, STUDY.parts[0]: there})
    counts = {row[0]: row[1] for row in grid.rows}
    assert counts["fedavg"] == "1 / 0 / 1"
    assert counts["fedasmu"] == "1 / 0 / 0"


def test_a_table_has_the_cells_and_the_claims(tmp_path: Path) -> None:
    found = league(tmp_path, fedasmu=0.71, fedasmu_r=0.8, fedavg=0.6)
    titles = [grid.title for grid in versus.compared(STUDY, "table2", {PART: found})]
    assert titles == [
        "lenet-fashion-mnist",
        "lenet-fashion-mnist: ahead by",
        "fedasmu-r against every method",
        "The paper's claims",
    ]
    assert [grid.title for grid in versus.compared(STUDIES["slots"], "slots", {PART: found})] == titles[::3]


def test_a_part_of_the_data_is_named(tmp_path: Path) -> None:
    made_run(tmp_path / "fedasmu" / "seed-0", "fedasmu", data="fashion-mnist-2-of-10")
    (found,) = leagues(find([tmp_path]))
    assert found.title == "lenet5 on fashion-mnist-2-of-10"
    titles = [grid.title for grid in versus.compared(STUDY, "table2", {PART: found})[:2]]
    assert titles[0] == "lenet-fashion-mnist (on fashion-mnist-2-of-10)"
    assert titles[1] == "lenet-fashion-mnist (on fashion-mnist-2-of-10): ahead by"
