"""Who leads, and which differences the seeds' spread lets one believe in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedasmu.algorithms import NAMES
from fedasmu.report.league import League, find, leagues
from fedasmu.report.lessons import best, decided, few, leaders, lesson, noise, t_95
from fedasmu.report.page.charts import curves
from fedasmu.report.tables import main_table
from helpers.made_runs import made_run


def league(folder: Path, ends: Mapping[str, Sequence[float]], quick: str = "") -> League:
    """Methods whose seeds end at these accuracies, after 100 s; one of them may take half of that."""
    for method, values in ends.items():
        for seed, end in enumerate(values):
            curve = [(0, 0.1), (50 if method == quick else 100, end), (200, end)]
            made_run(folder / method / f"seed-{seed}", method, seed, curve=curve, accuracy=end)
    (found,) = leagues(find([folder]))
    return found


@pytest.mark.parametrize(("freedom", "tabled"), [(1, 12.706), (10, 2.228), (11, 2.201), (15, 2.131), (60, 2.000)])
def test_students_t(freedom: int, tabled: float) -> None:
    assert t_95(freedom) == pytest.approx(tabled, abs=0.02)


def test_a_paired_test_sees_what_is_the_same_in_every_seed(tmp_path: Path) -> None:
    """Differences 0.01, 0.02, 0.03: mean 0.02, deviation 0.01, t = 0.02 / (0.01 / sqrt 3) = 3.46 < 4.303."""
    close = league(tmp_path / "close", {"fedasmu": [0.61, 0.72, 0.83], "fedavg": [0.60, 0.70, 0.80]})
    assert [one.label for one in leaders(close)] == ["fedasmu", "fedavg"]
    # 0.02, 0.02, 0.021: t = 0.02033 / (0.000577 / sqrt 3) = 61, far below the noise that the methods' own spread is
    steady = league(tmp_path / "steady", {"fedasmu": [0.62, 0.72, 0.821], "fedavg": [0.60, 0.70, 0.80]})
    assert [one.label for one in leaders(steady)] == ["fedasmu"]
    assert noise(steady) > 0.2


def test_who_cannot_be_told_from_the_best_leads_too(tmp_path: Path) -> None:
    found = league(
        tmp_path, {"fedasmu": [0.80, 0.82, 0.81], "fedavg": [0.82, 0.80, 0.81], "fedbuff": [0.6, 0.62, 0.61]}
    )
    assert {one.label for one in leaders(found)} == {"fedasmu", "fedavg"}
    marked = {one.label: columns for one, columns in zip(found.standings, best(found), strict=True)}
    assert "accuracy" in marked["fedasmu"]
    assert "accuracy" in marked["fedavg"]
    assert "accuracy" not in marked["fedbuff"]


def test_with_two_seeds_who_is_at_chance_does_not_lead(tmp_path: Path) -> None:
    """A paired test of two seeds has t = 0.46 / (0.085 / sqrt 2) = 7.7 < 12.706; all seeds' noise is 0.16."""
    found = league(tmp_path, {"fedasmu": [0.50, 0.62], "fedavg": [0.54, 0.56], "fedbuff": [0.10, 0.10]})
    assert [one.label for one in leaders(found)] == ["fedasmu", "fedavg"]
    assert "; the seeds do not tell fedavg from it." in lesson(found)


def test_noise_is_the_least_significant_difference(tmp_path: Path) -> None:
    """Two methods of three seeds with deviations of 0.01: t(4) * 0.01 * sqrt(2 / 3) = 2.776 * 0.008165."""
    found = league(tmp_path, {"fedasmu": [0.80, 0.82, 0.81], "fedavg": [0.71, 0.70, 0.72]})
    assert noise(found) == pytest.approx(0.02267, rel=1e-3)
    two = league(tmp_path / "two", {"fedasmu": [0.80, 0.82], "fedavg": [0.71, 0.70]})  # t(2) = 4.303 times 0.0112
    assert "Differences below 4.8 points are within the noise of the seeds." in lesson(two)


def test_seeds_that_end_alike_have_no_noise_to_speak_of(tmp_path: Path) -> None:
    assert "noise" not in lesson(league(tmp_path, {"fedasmu": [0.8, 0.8], "fedavg": [0.7, 0.7]}))


def test_seeds_that_methods_do_not_share_tell_nothing(tmp_path: Path) -> None:
    for method, first in {"fedavg": 0, "fedasmu": 1}.items():
        for seed, end in enumerate((0.80, 0.82) if method == "fedavg" else (0.5, 0.6), first):
            made_run(tmp_path / method / f"seed-{seed}", method, seed, curve=[(0, 0.1), (100, end)], accuracy=end)
    (found,) = leagues(find([tmp_path]))
    assert [one.label for one in leaders(found)] == ["fedavg", "fedasmu"]
    assert main_table(found).note.startswith("Means over 2 seeds (fedavg: seeds 0, 1)")


def test_two_shared_seeds_are_compared_by_themselves(tmp_path: Path) -> None:
    """On both seeds that they share they are equal; fedasmu's other three are on other tasks."""
    ends = {"fedasmu": [0.5, 0.5, 0.9, 0.9, 0.9]} | {name: [0.5, 0.5] for name in [*NAMES][-17:]}
    found = league(tmp_path, ends)
    assert noise(found) < found.standings[0].score - 0.5
    assert len(leaders(found)) == 18


def test_a_best_method_with_one_seed_is_not_said_to_lead(tmp_path: Path) -> None:
    found = league(tmp_path, {"fedasmu": [0.5, 0.51, 0.5], "fedbuff": [0.9]})
    assert lesson(found).endswith("fedbuff has one seed: whether it leads cannot be told.")


def test_who_had_not_been_measured_at_the_common_time_does_not_count_there(tmp_path: Path) -> None:
    for method, curve in {
        "fedavg": [(40, 0.3), (200, 0.6)],
        "fedbuff": [(1, 0.1), (30, 0.5)],
        "port": [(1, 0.1), (30, 0.2)],
    }.items():
        made_run(tmp_path / method / "seed-0", method, 0, curve=curve)
    (found,) = leagues(find([tmp_path]))
    assert [one.label for one, columns in zip(found.standings, best(found), strict=True) if "at" in columns] == [
        "fedbuff"
    ]
    assert [one.label for one in few(found)][:2] == ["fedavg", "fedbuff"]


def test_the_pages_curves_begin_where_all_seeds_have_been_measured(tmp_path: Path) -> None:
    for seed, first in enumerate((20, 10)):
        made_run(tmp_path / f"fedavg/seed-{seed}", "fedavg", seed, curve=[(first, 0.2), (100, 0.6)])
    (found,) = leagues(find([tmp_path]))
    drawn = curves(found)[0]
    known = [x for x, mean in zip(drawn["x"], drawn["series"][0][0], strict=True) if mean is not None]
    assert min(drawn["x"]) == 0
    assert 20 <= min(known) < 21


def test_the_lesson_says_who_is_ahead_and_how_sure_that_is(tmp_path: Path) -> None:
    ends = {"fedasmu": [0.70, 0.71, 0.70], "fedavg": [0.80, 0.81, 0.80], "fedbuff": [0.4, 0.4, 0.41]}
    assert lesson(league(tmp_path, ends, quick="fedavg")) == (
        "fedavg ends highest, at an accuracy of 0.803, 10.0 points before fedasmu. "
        "fedavg is the first at 0.7, after 50 s; fedasmu takes 2.0 times as long."
    )


def test_methods_that_end_alike_are_said_to(tmp_path: Path) -> None:
    found = league(tmp_path, {"fedasmu": [0.1], "fedavg": [0.1], "fedbuff": [0.05]})
    assert lesson(found).startswith("fedasmu and fedavg end alike, at an accuracy of 0.100.")
    assert "±" not in main_table(found).note


def test_one_seed_is_said_to_be_one(tmp_path: Path) -> None:
    found = league(tmp_path, {"fedasmu": [0.8], "fedavg": [0.7]})
    assert math.isnan(noise(found))
    assert lesson(found).endswith("One seed each: what is noise cannot be told.")
    assert all("accuracy" not in columns for columns in best(found)), "nothing is bold by a single seed"


def test_the_few_to_look_at_first(tmp_path: Path) -> None:
    names = ["fedasmu", "fedavg", "fedprox", "feddyn", "fedasync", "port", "fedbuff", "fedsa"]
    found = league(tmp_path, {name: [0.5 + 0.01 * place] for place, name in enumerate(names)})
    chosen = [one.label for one in few(found)]
    assert chosen == ["fedasmu", "fedsa", "fedavg", "fedbuff", "port", "fedasync"]


def test_a_sign_is_told_from_the_seeds() -> None:
    assert decided([1.0, 1.2, 0.9]) == 1
    assert decided([-1.0, -1.1]) == -1  # mean -1.05, standard error 0.05, t is 12.7
    assert decided([1.0, 3.0, 5.0]) == 0  # mean 3, standard error 1.15, t is 4.3
    assert decided([7.0]) == 0
