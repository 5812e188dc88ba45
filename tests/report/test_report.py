"""Tables and figures from run directories alone, on runs made by hand."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedasmu
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.report import latex, tables
from fedasmu.report.figures import curves, looks, smooth
from fedasmu.report.league import League, find, leagues, target_of
from helpers.made_runs import made_run

FAST = ((0, 0.1), (100, 0.5), (200, 0.8))
SLOW = ((0, 0.1), (300, 0.5), (600, 0.6))
FAILING = ((0, 0.1), (300, 0.2), (600, 0.3))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """fedasmu reaches both targets; fedavg the lower one, and that on one seed of two."""
    made_run(tmp_path / "runs/fedasmu/seed-0", curve=FAST, fresh=3)
    made_run(tmp_path / "runs/fedasmu/seed-1", seed=1, curve=((0, 0.2), (140, 0.6), (200, 0.9)), fresh=1)
    made_run(tmp_path / "runs/fedavg/seed-0", "fedavg", 0, SLOW, stale=3, refused=1)
    made_run(tmp_path / "runs/fedavg/seed-1", "fedavg", 1, FAILING)
    return tmp_path / "runs"


def league(runs: Path) -> League:
    (found,) = leagues(find([runs]))
    return found


def test_a_standing_is_worked_out_over_the_seeds(runs: Path) -> None:
    first, other = league(runs).standings
    assert (first.label, other.label) == ("fedasmu", "fedavg")
    assert first.score == first.last_score == pytest.approx((0.8 + 0.9) / 2)  # a quarter of 2 evaluations: one
    assert first.spread == pytest.approx(0.1 / math.sqrt(2))
    assert first.reach(0.5).median == 120.0
    assert (other.reach(0.5).median, other.reach(0.5).reached, other.reach(0.5).seeds) == (math.inf, 1, 2)
    assert other.discarded == 2.0
    assert first.fresh_megabytes == 2.0
    assert first.megabytes == pytest.approx(2 + 2 + 2)  # down, fresh, up
    assert first.megabytes_to(0.5) == 2.0
    assert target_of(league(runs)) == 0.7  # both targets are reached by fedasmu alone: the higher one


def test_the_median_of_three_stands_if_two_reached_it(runs: Path) -> None:
    made_run(runs / "fedavg/seed-2", "fedavg", 2, SLOW)
    made_run(runs / "fedasmu/seed-2", seed=2, curve=FAST)
    found = league(runs)
    assert found.times_as_long(found.standings[1], 0.5) == 3.0
    table = tables.main_table(found)
    assert table.header[5:7] == ("s to 0.5", "s to 0.7")
    assert table.rows[1][5:7] == ("300 (3.00x), 2 of 3 seeds", "not reached")
    assert table.rows[0][5] == "100"


def test_methods_are_compared_at_equal_time_too(runs: Path) -> None:
    found = league(runs)
    assert found.common_time == 200.0
    table = tables.main_table(found)
    assert (table.header[2], table.rows[0][2]) == ("at 200 s", "0.8500")
    assert table.rows[1][2] == "0.1000"  # nothing but the untrained model was evaluated by then


def test_the_final_accuracy_is_of_trained_models_and_of_few(tmp_path: Path) -> None:
    rising = [(time, 0.1 + 0.01 * time) for time in range(9)]
    short = made_run(tmp_path / "short", curve=rising)
    assert short.accuracy == pytest.approx((0.17 + 0.18) / 2)  # a quarter of eight
    assert short.last_score == pytest.approx(0.18)
    assert short.score_at(1) == pytest.approx(0.11)
    assert short.score_at(0) == pytest.approx(0.1)
    long = made_run(tmp_path / "long", seed=1, curve=[(time, time / 1000) for time in range(201)])
    assert long.accuracy == pytest.approx(sum(range(181, 201)) / 20 / 1000)
    (found,) = leagues([short])
    assert "accuracy: the mean of the last 2 evaluations" in tables.main_table(found).note
    assert "% Acc, in percent: the mean of the last 2 evaluations" in latex.table([found])
    assert tables.settled(leagues([short, long])[0].standings) == "the mean of the last 2 to 20 evaluations"


def test_an_older_run_counts_by_the_same_definition(tmp_path: Path) -> None:
    old = made_run(tmp_path / "old", accuracy=0.3)  # as its summary has it
    assert leagues([old])[0].standings[0].score == pytest.approx(0.8)


def test_a_run_that_is_older_than_a_setting_has_its_default(tmp_path: Path) -> None:
    made_run(tmp_path / "new", seed=1)
    for number, key in enumerate(("calibrate", "every", "alpha")):
        table = tmp_path / "old" / key
        made_run(table, seed=2 + number)
        lines = (table / "config.toml").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{key} = ")]
        assert len(kept) < len(lines)
        (table / "config.toml").write_text("".join(kept))
    (standing,) = league(tmp_path).standings
    assert (standing.label, len(standing.runs)) == ("fedasmu", 4)


def test_methods_keep_the_order_in_which_they_were_given(runs: Path) -> None:
    made_run(runs / "fedasync/seed-0", "fedasync", curve=SLOW)
    (runs / "methods.txt").write_text("fedavg\nfedasync\n")
    assert [one.label for one in league(runs).standings] == ["fedavg", "fedasync", "fedasmu"]
    (chosen,) = leagues(find([runs]), "fedasync")
    assert [one.label for one in chosen.standings] == ["fedasync", "fedavg", "fedasmu"]
    with pytest.raises(
        UserError, match=r"reference = fedagv: not among the methods; did you mean fedavg\? \(allowed: fed"
    ):
        leagues(find([runs]), "fedagv")


def test_refusals_are_marked(runs: Path) -> None:
    table = tables.main_table(league(runs))
    place = table.header.index("discarded")
    assert [row[place] for row in table.rows] == ["0", "2 (0 refused)"]
    assert "training diverged" in table.note


def test_a_curve_begins_where_all_have_been_measured(tmp_path: Path) -> None:
    """Where the devices measure, the first evaluation may come late; and the table says nothing of a time before it."""
    made_run(tmp_path / "fedavg/seed-0", "fedavg", 0, curve=[(20, 0.3), (100, 0.6)])
    made_run(tmp_path / "fedavg/seed-1", "fedavg", 1, curve=[(10, 0.1), (100, 0.8)])
    made_run(tmp_path / "fedasync/seed-0", "fedasync", 0, curve=[(1, 0.1), (15, 0.2)])
    (found,) = leagues(find([tmp_path]))
    times, mean, _ = found.named("fedavg").curve(points=2)  # type: ignore[union-attr]
    assert times.tolist() == [20.0, 100.0]
    assert mean.tolist() == pytest.approx([0.2, 0.7])
    table = tables.main_table(found)
    at = table.header.index("at 15 s")
    assert {row[0]: row[at] for row in table.rows} == {"fedavg": "-", "fedasync": "0.2000"}


def test_a_curve_holds_its_last_evaluation(runs: Path) -> None:
    times, mean, spread = league(runs).standings[0].curve(points=5)
    assert times.tolist() == [0, 50, 100, 150, 200]
    assert mean.tolist() == pytest.approx([0.15, 0.15, 0.35, 0.55, 0.85])
    assert spread[0] == pytest.approx(0.1 / math.sqrt(2))


def test_evaluations_are_averaged_one_by_one_as_far_as_all_seeds_go(tmp_path: Path) -> None:
    made_run(tmp_path / "fedavg/seed-0", "fedavg", 0, curve=[(0, 0.1), (80, 0.3)])
    made_run(tmp_path / "fedavg/seed-1", "fedavg", 1, curve=[(0, 0.1), (100, 0.5), (200, 0.8)])
    times, mean, spread = league(tmp_path).reference.measured()
    assert times.tolist() == [0, 90]
    assert mean.tolist() == pytest.approx([0.1, 0.4])
    assert spread.tolist() == pytest.approx([0, 0.2 / math.sqrt(2)])


def test_a_running_mean_keeps_a_constant() -> None:
    assert smooth(np.full(30, 0.7)).tolist() == pytest.approx([0.7] * 30)


def test_a_line_of_few_evaluations_goes_through_them_and_ends_at_the_last(runs: Path) -> None:
    found = league(runs)
    [axes] = curves(found, looks(["fedasmu", "fedavg"])).axes
    line = next(line for line in axes.lines if "fedasmu" in str(line.get_label()))
    assert np.asarray(line.get_xdata()).tolist() == [0, 120, 200]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([0.15, 0.55, found.reference.last_score])
    assert axes.get_ylabel() == "accuracy"


def test_a_line_of_many_evaluations_is_their_running_mean(tmp_path: Path) -> None:
    made_run(tmp_path / "many", curve=[(time, 0.1 + 0.7 * (time % 2)) for time in range(251)])
    [axes] = curves(league(tmp_path), looks(["fedasmu"])).axes
    assert np.ptp(np.asarray(axes.lines[0].get_ydata())[5:-5]) < 0.25  # of 0.7
    assert axes.get_ylabel() == "accuracy (running mean)"


def test_the_band_of_a_curve_is_not_cut_off(tmp_path: Path) -> None:
    for seed, peak in enumerate((0.1, 0.6)):
        made_run(tmp_path / f"fedasmu/seed-{seed}", seed=seed, curve=[(0, 0.1), (100, peak), (200, 0.2)])
    [axes] = curves(league(tmp_path), looks(["fedasmu"])).axes
    assert axes.get_ylim()[1] > 0.35 + 0.5 / math.sqrt(2)


def test_the_same_run_in_two_places_counts_once_and_other_settings_get_a_longer_label(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedasync")
    made_run(tmp_path / "b", "fedasync", overrides=["algorithm.alpha=0.9"])
    labels = [standing.label for standing in league(tmp_path).standings]
    assert labels == ["fedasync (alpha=0.6)", "fedasync (alpha=0.9)"]
    assert len(find([tmp_path, tmp_path / "a"])) == 2
    made_run(tmp_path / "again/fedbuff/seed-0", "fedbuff")
    made_run(tmp_path / "more/fedbuff/seed-0", "fedbuff")
    assert len(league(tmp_path).standings[-1].runs) == 1


def test_environments_are_leagues_of_their_own(tmp_path: Path) -> None:
    for preset in ("base", "het110"):
        made_run(tmp_path / preset / "fedasmu/seed-0", overrides=[f"fleet.preset={preset}"])
    titles = [found.title for found in leagues(find([tmp_path]))]
    assert titles == ["lenet5 on fashion-mnist, base", "lenet5 on fashion-mnist, het110"]


def test_the_command_writes_everything(runs: Path) -> None:
    made_run(runs / "z-far/fedasmu/seed-0", overrides=["fleet.preset=het440"])
    for name in ("fedasmu-da", "fedasmu-fa", "fedasmu-0"):
        made_run(runs / name / "seed-0", name, curve=SLOW)
    result = CliRunner().invoke(app, ["report", str(runs)])
    assert result.exit_code == 0, result.output
    written = {path.name for path in (runs / "report").iterdir()}
    base, far = "lenet5-on-fashion-mnist-base", "lenet5-on-fashion-mnist-het440"
    pictures = {f"{kind}-{task}" for kind in ("curves", "time-to-target") for task in (base, far)}
    pictures |= {"environments", f"ablation-{base}"}
    assert {f"{name}{suffix}" for name in pictures for suffix in (".png", ".svg")} < written
    rows = list(csv.DictReader(io.StringIO((runs / "report/results.csv").read_text())))
    assert [row["method"] for row in rows] == ["fedasmu", "fedasmu-da", "fedasmu-fa", "fedasmu-0", "fedavg", "fedasmu"]
    assert rows[4]["time_to_0.5"] == ""
    assert "| fedasmu | " in (runs / "report/tables.md").read_text()
    again = {path: path.read_bytes() for path in (runs / "report").iterdir()}
    (runs / "report" / "curves-of-old.png").touch()
    output = CliRunner().invoke(app, ["report", str(runs)]).output.replace("\n", "")
    assert all(str(path) in output for path in again)
    assert "curves-of-old.png" not in output, "it is of an earlier report"
    assert {path: path.read_bytes() for path in again} == again


def test_the_latex_is_balanced_and_escaped(runs: Path) -> None:
    made_run(runs / "odd_50%/seed-0", "fedbuff")
    text = latex.table(leagues(find([runs])))
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    bare = re.sub(r"\\[{}%_&]", "", text)
    assert bare.count("{") == bare.count("}")
    assert r"odd\_50\%" in text
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    columns = len(re.search(r"tabular}{(\w+)}", text)[1])  # type: ignore[index]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {columns - 1}
    assert r"\textbf{160}" not in text
    assert re.search(r"FedAvg & [^&]+ & / \(1 of 2 seeds\) & /", text)


def test_markdown_rows_have_one_width(runs: Path) -> None:
    for grid in (tables.main_table(league(runs)), tables.communication_table(league(runs))):
        lines = [line for line in grid.markdown().splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    assert tables.communication_table(league(runs)).rows[0][1:4] == ("4.0", "2.0", "50 %")


def test_a_wide_table_is_shown_in_parts(runs: Path) -> None:
    grid = tables.main_table(league(runs))
    parts = grid.parts(60)
    assert len(parts) > 1
    assert all(part.header[0] == "method" for part in parts)
    assert sum(len(part.header) - 1 for part in parts) == len(grid.header) - 1
    assert [part.title for part in grid.parts(500)] == [grid.title]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "runs: no such directory; give run directories, or folders of them"),
        (Path.touch, "runs: not a directory; give run directories"),
        (Path.mkdir, "no finished run"),
    ],
)
def test_a_directory_without_runs_is_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "runs")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_a_place_that_cannot_be_written_is_refused(runs: Path) -> None:
    (runs / "file").touch()
    for place in (runs / "file", runs / "file" / "report", Path("/proc/report")):
        result = CliRunner().invoke(app, ["report", str(runs), "--out", str(place)])
        assert isinstance(result.exception, UserError)
        assert str(result.exception).startswith(f"out = {place}: cannot be written: ")


def test_runs_load_as_a_frame(runs: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = fedasmu.load_runs(runs)
    assert isinstance(frame, pandas.DataFrame)
    assert frame.shape[0] == 4
    assert list(frame[frame.method == "fedasmu"]["time_to.0.5"]) == [100.0, 140.0]
    assert "algorithm.name" in frame.columns
    assert "model.name" not in frame.columns


def test_without_pandas_the_error_says_what_to_install(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        fedasmu.load_runs(runs)


def test_a_method_with_fewer_seeds_is_named(tmp_path: Path) -> None:
    for method, seeds in (("fedasmu", 2), ("fedbuff", 1)):
        for seed in range(seeds):
            made_run(tmp_path / method / f"seed-{seed}", method, seed)
    (found,) = leagues(find([tmp_path]))
    assert tables.main_table(found).note.startswith("Means over 2 seeds (fedbuff 1); accuracy: ")


def test_where_first_weights_lay_is_not_the_task(tmp_path: Path) -> None:
    for number, (method, digest) in enumerate((("fedasmu", "a" * 64), ("fedbuff", "a" * 64), ("fedavg", "b" * 64))):
        first = [f"model.weights=/home/{number}/first.safetensors", f"model.weights_sha256={digest}"]
        made_run(tmp_path / method / "seed-0", method, 0, overrides=first)
    found = [sorted(one.label for one in league.standings) for league in leagues(find([tmp_path]))]
    assert sorted(found) == [["fedasmu", "fedbuff"], ["fedavg"]]
    made_run(tmp_path / "fedavg/seed-1", "fedavg", 1, overrides=["model.weights=elsewhere", *first[1:]])
    standings = [standing for league in leagues(find([tmp_path])) for standing in league.standings]
    assert [len(standing.runs) for standing in standings if standing.label == "fedavg"] == [2]


def test_of_two_runs_with_one_place_the_second_is_named_unless_it_is_a_copy(tmp_path: Path) -> None:
    """A method of the user's own was edited between them, or a model or data given in Python were others."""
    made_run(tmp_path / "a/before", curve=FAST)
    made_run(tmp_path / "a/later", curve=SLOW)
    made_run(tmp_path / "b/copy", curve=FAST)
    made_run(tmp_path / "b/seed", seed=1, curve=SLOW)
    said: list[str] = []
    (found,) = leagues(find([tmp_path], said.append))
    assert [run.result.directory.name for run in found.reference.runs] == ["before", "seed"]
    (line,) = [line for line in said if line.startswith("left out")]
    assert line.startswith(
        f"left out: {tmp_path / 'a/later'}: it has the settings and the seed of {tmp_path / 'a/befo'}"
    )
    assert "<label>/seed-0" in line
    for name, label in (("before", "mine"), ("later", "edited")):
        (tmp_path / label).mkdir()
        (tmp_path / "a" / name).rename(tmp_path / label / "seed-0")
    (found,) = leagues(find([tmp_path / "mine", tmp_path / "edited"], said.append))
    assert sorted(standing.label for standing in found.standings) == ["edited", "mine"]


@pytest.mark.parametrize("change", ["engine=torch", "instructions=avx2", "device=cuda", "per_gpu=2"])
def test_who_computed_is_not_the_task(change: str, tmp_path: Path) -> None:
    made_run(tmp_path / "fedasmu/seed-0", "fedasmu", 0, overrides=[change])
    made_run(tmp_path / "fedbuff/seed-0", "fedbuff", 0)
    assert len(leagues(find([tmp_path]))) == 1


def test_a_table_says_what_makes_its_rows_unequal(tmp_path: Path) -> None:
    made_run(tmp_path / "fedasmu/seed-0", "fedasmu", 0, uploads=1160, engine="native")
    made_run(tmp_path / "fedbuff/seed-0", "fedbuff", 0, uploads=5000, engine="PyTorch")
    (found,) = leagues(find([tmp_path]))
    note = tables.main_table(found).note
    assert "Not of equal length: runs ended after 1,160 to 5,000 uploads." in note
    assert "Engines of the runs: native (1), PyTorch (1)." in note
