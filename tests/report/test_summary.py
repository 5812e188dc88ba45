"""One run as a table and a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from fedasmu.report.figures import curves, environments, looks, times
from fedasmu.report.league import leagues
from fedasmu.report.overfitting import overfit
from fedasmu.report.palette import order
from fedasmu.report.summary import lines
from fedasmu.report.tables import main_table
from fedasmu.run.result import Result
from fedasmu.storage.record import SCRIPT, SERVED
from helpers.made_runs import made_run

HET = ["fleet.preset=het110"]


def test_only_simulated_time_is_called_virtual(tmp_path: Path) -> None:
    result = made_run(tmp_path / "run")
    assert {"virtual time", "virtual time to 0.5"} <= dict(lines(result)).keys()
    assert result.plot().axes[0].get_xlabel() == "virtual time (s)"
    (tmp_path / "run" / SERVED).write_text("{}")
    assert {"time", "time to 0.5"} <= dict(lines(result)).keys()
    assert result.plot().axes[0].get_xlabel() == "time (s)"
    (tmp_path / "run" / SCRIPT).mkdir()
    assert result.clock == "virtual time", "its devices played a simulation"


def test_a_picture_says_on_which_examples_a_run_was_measured(tmp_path: Path) -> None:
    def label(name: str, *changes: str, by: str = "server") -> str:
        return made_run(tmp_path / name, overrides=changes, accuracy_by=by).plot().axes[0].get_ylabel()

    assert label("plain") == "test accuracy"
    assert label("tuning", "data.held_out=0.1") == "accuracy, measured on held-out training data"
    asked = "evaluate.on_devices=0.1", "evaluate.by=devices"
    assert label("devices", *asked, by="devices") == "accuracy, measured by the devices"


def test_tables_say_on_which_examples_runs_were_measured(tmp_path: Path) -> None:
    result = made_run(tmp_path / "run", overrides=["data.held_out=0.1"])
    assert dict(lines(result))["  measured on"] == "held-out training data"
    (league,) = leagues([result])
    assert "; accuracy, measured on held-out training data: the last evaluation" in main_table(league).note
    result = made_run(tmp_path / "devices", accuracy_by="devices")
    assert dict(lines(result))["  measured by"] == "the devices"
    (league,) = leagues([result])
    assert "; accuracy, measured by the devices: the last" in main_table(league).note
    (league,) = leagues([made_run(tmp_path / "plain")])
    assert "; accuracy: the last" in main_table(league).note


@pytest.mark.parametrize(
    ("sent", "told"), [(1_234_567, "1.2 MB / 0.1 MB"), (40_320, "40.3 kB / 0.1 MB"), (0, "0.0 kB / 0.1 MB")]
)
def test_what_is_sent_is_told_in_a_unit_that_shows_it(sent: int, told: str, tmp_path: Path) -> None:
    result = made_run(tmp_path / "run", bytes_down=sent, bytes_up=123_456)
    assert dict(lines(result))["sent to devices / to the server"] == told


def test_a_report_calls_time_virtual_only_if_it_is_of_all_its_runs(tmp_path: Path) -> None:
    results = [made_run(tmp_path / method / "seed-0", method) for method in ("fedavg", "fedasync")]
    (league,) = leagues(results)
    assert "virtual seconds" in main_table(league).note
    (tmp_path / "fedavg" / "seed-0" / SERVED).write_text("{}")
    (league,) = leagues(results)
    assert "virtual" not in main_table(league).note
    for figure in (curves(league, looks(["fedavg", "fedasync"])), times(league)):
        assert figure.axes[0].get_xlabel() == "time (s)"


def test_a_target_that_nobody_reached_has_no_times(tmp_path: Path) -> None:
    (league,) = leagues([made_run(tmp_path / "run", curve=[(0, 0.1), (100, 0.6)])])
    reached, missed = times(league).axes
    assert len(reached.get_xticks()) > 1
    assert list(missed.get_xticks()) == []


def test_every_method_of_an_environment_is_drawn_and_times_where_there_are_any(tmp_path: Path) -> None:
    def drawn(*results: Result) -> Figure:
        return environments(found := leagues(results), looks(order(found)))

    low = [(0.0, 0.1), (100.0, 0.2)]
    missed = [made_run(tmp_path / "base", curve=low), made_run(tmp_path / "far", curve=low, overrides=HET)]
    figure = drawn(*missed, made_run(tmp_path / "once", "fedavg", curve=low))
    [scores] = figure.axes
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"fedasmu", "fedavg"}
    assert all(label.get_text().endswith("target 0.7\nnot reached") for label in scores.get_xticklabels())
    served = made_run(tmp_path / "served", "fedasync", overrides=HET)
    assert drawn(*missed, served).axes[1].get_ylabel() == "virtual time to target (s)"
    (tmp_path / "served" / SERVED).write_text("{}")
    (tmp_path / "far" / SERVED).write_text("{}")
    assert drawn(*missed, served).axes[1].get_ylabel() == "time to target (s)"


@pytest.mark.parametrize(
    ("test", "train", "found"),
    [
        ([*range(30, 10, -1), *range(10, 30)], [*range(60, 20, -1)], True),
        ([*range(30, 10, -1), *range(10, 30)], [30.0] * 40, False),  # the devices' loss does not fall: no overfitting
        ([*range(50, 10, -1)], [*range(60, 20, -1)], False),
        ([*range(50, 12, -1), 12.5, 13.0], [*range(60, 20, -1)], False),  # it swings
        ([3, 1, 2, 3], [4, 3, 2, 1], False),  # too few to tell
    ],
)
def test_a_run_says_when_it_overfits(test: list[float], train: list[float], found: bool, tmp_path: Path) -> None:
    result = made_run(tmp_path / "run", curve=[(100 * k, 0.5) for k in range(len(test) + 1)])
    result.curve["loss"][1:], result.curve["train_loss"][1:] = test, train
    assert (overfit(result) is not None) == found
    assert any("overfits after 20" in label for label, _ in lines(result)) == found


@pytest.mark.parametrize(
    "curve",
    [
        [(0, 0.1), (199_000, 0.45), (200_000, 0.72)],  # both targets are reached at the very end
        [(0, 0.1), (100, 0.72), (200_000, 0.75)],
        [(0, 0.1), (100_000, 0.55), (200_000, 0.7)],
    ],
)
def test_the_label_of_a_target_stays_within_the_frame(curve: list[tuple[float, float]], tmp_path: Path) -> None:
    figure = made_run(tmp_path / "run", curve=curve).plot()
    figure.draw_without_rendering()
    [axes] = figure.axes
    assert len(axes.texts) == 2
    for label in axes.texts:
        box, frame = label.get_window_extent(), axes.bbox
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1, label.get_text()
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1, label.get_text()


def test_a_curve_leaves_the_settings_of_a_notebook_as_they_are(tmp_path: Path) -> None:
    with matplotlib.rc_context({"text.parse_math": True}):
        figure = made_run(tmp_path / "run", data="$mine$").plot()
        assert matplotlib.rcParams["text.parse_math"] is True
    assert not figure.axes[0].title.get_parse_math(), "a name is a text"
