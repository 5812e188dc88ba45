"""Where asynchrony pays: winners and margins by hand, the picture, and the command on a tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedasmu.cli import app
from fedasmu.report.league import League, find, leagues
from fedasmu.study import asynchrony
from fedasmu.study.studies import FLIGHTS, SIGMAS, SKEWS, STUDIES, place_of
from helpers.made_runs import made_run

PARTS = STUDIES["asynchrony"].parts


def league(directory: Path, **methods: list[tuple[float, float]]) -> League:
    for method, curve in methods.items():
        made_run(directory / method / "seed-0", method.replace("_", "-"), curve=curve)
    (found,) = leagues(find([directory]))
    return found


def test_the_grid_has_every_place_once() -> None:
    wanted = {(sigma, flight, skew) for sigma in SIGMAS for flight in FLIGHTS for skew in SKEWS}
    assert sorted(place_of(part) for part in PARTS) == sorted(wanted)


def test_a_margin_is_that_of_the_best_of_both_kinds_at_equal_time(tmp_path: Path) -> None:
    """At 100 s, when FedBuff is through, FedAvg is at 0.3 and FedDyn at 0.4; what they reach later does not count."""
    slow = [(0.0, 0.1), (100.0, 0.3), (400.0, 0.9)]
    found = league(tmp_path, fedavg=slow, feddyn=[(100.0, 0.4), (400.0, 0.5)], fedbuff=[(100.0, 0.6)])
    (place,) = asynchrony.places({PARTS[0]: found})
    assert (place.sigma, place.flight, place.skew) == (0.0, 5, 0.1)
    assert (place.winner, place.seconds) == ("fedbuff", 100.0)
    assert place.margin == pytest.approx(20.0)


def test_where_waiting_pays_the_margin_is_below_0(tmp_path: Path) -> None:
    found = league(tmp_path / "both", fedavg=[(100.0, 0.7)], fedasmu_r=[(100.0, 0.6)])
    (place,) = asynchrony.places({PARTS[0]: found})
    assert place.winner == "fedavg"
    assert place.margin == pytest.approx(-10.0)
    assert asynchrony.places({PARTS[0]: league(tmp_path / "one", fedavg=[(100.0, 0.7)])}) == []


def test_the_command_draws_what_was_run(tmp_path: Path) -> None:
    tiny = ("data.name=fashion-mnist-small", "model=softmax", "fleet.devices=30", "local.epochs=1", "stop.uploads=10")
    sets = [text for change in tiny for text in ("--set", change)]
    only = f"{PARTS[0].title},{PARTS[-1].title}"
    command = ["reproduce", "asynchrony", "--only", only, *sets, "--workers", "inline", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "asynchrony.png").stat().st_size > 10_000
    lines = (tmp_path / "asynchrony.md").read_text().splitlines()
    assert [line.split(" | ")[:3] for line in lines if line.startswith("| sigma")] == [
        ["| sigma 0", "5", "0.1"],
        ["| sigma 1.8", "25", "10"],
    ]
