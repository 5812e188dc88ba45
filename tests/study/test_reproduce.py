"""The paper's studies: its figures as data, the verdicts on hand-made numbers, and the command on a tiny budget."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedasmu import data
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.report.league import League, find, leagues
from fedasmu.settings.packaged import RECIPES
from fedasmu.settings.recipe import load
from fedasmu.study import judging, reproduce, studies, variants
from fedasmu.study.paper import EVERY, Claim, claims, gain, printed
from fedasmu.study.studies import BUDGETS, STUDIES, Part, Study
from helpers.made_runs import made_run
from helpers.said import said

SLOTS = ("fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3")
STUDY = Study("by hand", "paper", (Part("here"), Part("there")), target=0.5)


def test_the_papers_tables_are_complete() -> None:
    for table in ("table1", "table2"):
        columns = printed(table)
        assert list(columns) == [part.recipe for part in STUDIES[table].parts]
        assert {len(column) for column in columns.values()} == {10}
    assert printed("table1")["lenet-cifar-10"]["fedasmu"].time == 8800
    assert printed("table1")["cnn-cifar-10"]["fedprox"].time == math.inf
    assert printed("table2")["lenet-fashion-mnist"]["fedbuff"].accuracy == 0.767


def test_the_claims_of_a_table_are_the_ranges_over_its_columns() -> None:
    """PORT in the second table: accuracy 0.882 - 0.876 to 0.49 - 0.365; it never reaches AlexNet's target."""
    (accuracy,) = [claim for claim in claims("table2") if claim.worse == "port" and claim.measure == "accuracy"]
    assert (accuracy.low, accuracy.high) == pytest.approx((0.6, 12.5))
    (time,) = [claim for claim in claims("table2") if claim.worse == "port" and claim.measure == "time"]
    assert (time.low, time.high) == pytest.approx((27.58, 89.10), abs=0.01)


def test_every_study_has_claims_recipes_and_methods() -> None:
    for name, study in STUDIES.items():
        assert name == "asynchrony" or claims(name) or all(claims(part.printed) for part in study.parts)
        assert all((RECIPES / f"{part.recipe}.toml").is_file() for part in study.parts)
        assert variants.read(study.methods)
    assert len(studies.SENSITIVITY.split(",")) == 13


@pytest.mark.parametrize(
    ("measure", "better", "worse", "expected"),
    [
        ("accuracy", 0.52, 0.5, 2.0),
        ("accuracy", 0.5, 0.52, -2.0),
        ("time", 100.0, 400.0, 75.0),
        ("time", 400.0, 100.0, -300.0),
        ("time", 100.0, math.inf, math.inf),
        ("time", math.inf, 100.0, -math.inf),
        ("time", math.inf, math.inf, math.nan),
        ("time", 0.0, 400.0, 100.0),
        ("time", 0.0, 0.0, 0.0),
    ],
)
def test_a_gain_by_hand(measure: str, better: float, worse: float, expected: float) -> None:
    assert gain(measure, better, worse) == pytest.approx(expected, nan_ok=True)  # type: ignore[arg-type]


def made_league(directory: Path, **methods: list[float]) -> League:
    """Final accuracies of the seeds of each method; the target of 0.5 is reached at 100 s by those that can."""
    for method, accuracies in methods.items():
        for seed, accuracy in enumerate(accuracies):
            made_run(directory / method / f"seed-{seed}", method, seed, [(100, accuracy)])
    (found,) = leagues(find([directory]))
    return found


def verdict(claim: Claim, *found: League) -> str:
    return str(judging.judge(STUDY, claim, dict(zip(STUDY.parts, found, strict=False)), ""))


def test_verdicts_by_hand(tmp_path: Path) -> None:
    accuracy, time = Claim("accuracy", "fedasmu", "fedavg", 1, 2), Claim("time", "fedasmu", "fedavg", 1, 2)
    here = made_league(tmp_path / "here", fedasmu=[0.60, 0.61], fedavg=[0.50, 0.51], fedbuff=[0.70, 0.70])
    there = made_league(tmp_path / "there", fedasmu=[0.60, 0.61], fedavg=[0.65, 0.66])
    assert verdict(accuracy, here) == "holds"
    assert verdict(accuracy, here, there) == "does not hold"
    assert verdict(accuracy) == "not run"
    assert verdict(time, here) == "undecided"  # both at 100 s
    assert verdict(Claim("accuracy", "fedasmu", EVERY, 1, 2), here) == "does not hold"  # fedbuff
    assert verdict(Claim("accuracy", "fedasmu", "moon", 1, 2), here) == "not run"
    noisy = made_league(tmp_path / "noisy", fedasmu=[0.50, 0.70], fedavg=[0.49, 0.69])
    assert verdict(accuracy, noisy) == "holds"  # seed by seed: 1 point on both
    crossed = made_league(tmp_path / "crossed", fedasmu=[0.50, 0.70], fedavg=[0.49, 0.60])
    assert verdict(accuracy, crossed) == "undecided"  # 1 and 10 points
    assert verdict(accuracy, made_league(tmp_path / "one", fedasmu=[0.9], fedavg=[0.1])) == "undecided"
    low = made_league(tmp_path / "low", fedasmu=[0.2, 0.2], fedavg=[0.1, 0.1])
    assert verdict(accuracy, low) == "holds"
    assert verdict(time, low) == "no answer"
    for seed in range(2):
        made_run(tmp_path / f"told/fedasmu/seed-{seed}", "fedasmu", seed, [(0, 0.1), (50, 0.6), (200, 0.6)])
        made_run(tmp_path / f"told/fedavg/seed-{seed}", "fedavg", seed, [(0, 0.1), (100, 0.6), (200, 0.6)])
    (told,) = leagues(find([tmp_path / "told"]))
    assert verdict(time, told) == "holds"
    assert verdict(time, told, low) == "undecided"  # a pair that gives no answer is none that holds
    never = made_league(tmp_path / "never", fedasmu=[0.6, 0.7], fedavg=[0.1, 0.1])
    assert verdict(time, never) == "undecided"  # it alone got there, when the others ended
    half = made_league(tmp_path / "half", fedasmu=[0.6, 0.2, 0.6], fedavg=[0.1, 0.7, 0.1])
    assert verdict(time, half) == "undecided"
    (row,) = judging.verdict_table([judging.judge(STUDY, time, {STUDY.parts[0]: low}, "")]).rows
    assert row[2] == "neither got there on most seeds"


def test_the_spread_over_settings(tmp_path: Path) -> None:
    claim = Claim("spread", "fedasmu", "", 0.0, 2.4)
    found = made_league(tmp_path / "a", fedasmu=[0.60, 0.61], fedasync=[0.62, 0.63])
    assert verdict(claim, found) == "holds"
    wide = made_league(tmp_path / "b", fedasmu=[0.60, 0.61], fedasync=[0.63, 0.64])
    assert verdict(claim, wide) == "does not hold"
    assert verdict(claim, made_league(tmp_path / "c", fedasmu=[0.60], fedasync=[0.62])) == "undecided"
    unshared = made_league(tmp_path / "d", fedasmu=[0.60, 0.61, 0.90], fedasync=[0.595, 0.605])
    (gain,) = judging.judge(STUDY, claim, {STUDY.parts[0]: unshared}, "").gains
    assert gain.value == pytest.approx(0.5), "points, on the seeds that both have"


def test_a_run_that_never_got_there_took_longer_than_it_lasted(tmp_path: Path) -> None:
    quick = made_run(tmp_path / "quick", curve=[(0, 0.1), (100, 0.5), (400, 0.6)])
    slow = made_run(tmp_path / "slow", curve=[(0, 0.1), (300, 0.5), (400, 0.5)])
    never = made_run(tmp_path / "never", curve=[(0, 0.1), (400, 0.4)])
    short = made_run(tmp_path / "short", curve=[(0, 0.1), (50, 0.4)])
    assert judging.haste(quick, slow, 0.5) == pytest.approx(math.log(3))
    assert judging.haste(slow, quick, 0.5) == -judging.haste(quick, slow, 0.5)  # whoever is called the better one
    assert judging.haste(quick, never, 0.5) == pytest.approx(math.log(4))  # at the least
    assert judging.haste(never, quick, 0.5) == pytest.approx(-math.log(4))  # at the most
    assert math.isnan(judging.haste(quick, short, 0.5))  # which ended before, and might have been quicker still
    assert math.isnan(judging.haste(short, quick, 0.5))
    assert math.isnan(judging.haste(never, short, 0.5))


def test_a_gain_is_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    """FedBuff has the seed on which all are worse, and is ahead there."""
    for seed, accuracy in enumerate((0.8, 0.5, 0.8)):
        made_run(tmp_path / f"fedavg/seed-{seed}", "fedavg", seed, [(0, 0.1), (100, accuracy)])
    made_run(tmp_path / "fedbuff/seed-1", "fedbuff", 1, [(0, 0.1), (100, 0.51)])
    (found,) = leagues(find([tmp_path]))
    judged = judging.judge(STUDY, Claim("accuracy", "fedbuff", "fedavg", 0, 0), {STUDY.parts[0]: found}, "")
    assert [one.value for one in judged.gains] == pytest.approx([1.0])
    made_run(tmp_path / "fedsa/seed-7", "fedsa", 7, [(0, 0.1), (100, 0.51)])
    (found,) = leagues(find([tmp_path]))
    other = judging.judge(STUDY, Claim("accuracy", "fedsa", "fedavg", 0, 0), {STUDY.parts[0]: found}, "")
    assert judging.verdict_table([other]).rows[0][2:] == ("no seed in common", "no answer")


def test_what_was_found_for_a_method_holds_for_its_settings_too(tmp_path: Path) -> None:
    tuned = {"lenet-fashion-mnist": {"fedasmu": ["local.lr=0.09"]}}
    study = Study("by hand", "fedasmu,fedasmu(lambda0=2),fedavg", (Part("lenet-fashion-mnist"),))
    plan = reproduce.plan(study, BUDGETS["small"], [], RECIPES, tmp_path, ["data.name=fashion-mnist-small"], tuned)
    rates = {cell.label: cell.config.local.lr for cell in plan.all_cells}
    assert (rates["fedasmu"], rates["fedasmu-lambda0-2"]) == (0.09, 0.09)
    assert rates["fedavg"] == load(RECIPES / "lenet-fashion-mnist.toml").local.lr


def test_ours_beside_the_papers(tmp_path: Path) -> None:
    found = made_league(tmp_path, fedasmu=[0.6], fedavg=[0.5])
    study, part = STUDIES["table2"], STUDIES["table2"].parts[-1]
    grid = reproduce.beside(study, "table2", part, found)
    assert grid.rows[1] == ("fedavg", "0.5000", "/", "", "0.7060", "65,000", "7.88")
    some = made_league(tmp_path / "some", fedasmu=[0.8, 0.4, 0.8], fedavg=[0.1, 0.8, 0.1])
    rows = reproduce.beside(study, "table2", part, some).rows
    assert [row[2] for row in rows] == ["100, 2 of 3 seeds", "1 of 3 seeds"]
    behind = reproduce.beside(study, "table2", part, made_league(tmp_path / "behind", fedasmu=[0.6], fedavg=[0.8]))
    assert [row[2:4] for row in behind.rows] == [("/", ""), ("100", "")]  # of a time that there is not, no multiple
    at_once = made_league(tmp_path / "at-once", fedasmu=[0.8], fedavg=[0.8])
    for standing in at_once.standings:
        standing.runs[0].result.curve["time"][:] = 0.0
    assert [row[2:4] for row in reproduce.beside(study, "table2", part, at_once).rows] == [("0", ""), ("0", "")]


def _make(path: Path, folder: bool) -> None:
    (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
    if not folder:
        path.touch()


def test_what_cannot_run_is_left_out_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cifar-10", "cifar-100", "imdb"):  # what is here is told from the names of files, before any is read
        for layouts in data.describe(name).parts:
            for file in layouts[0].files:
                _make(tmp_path / "data" / layouts[0].folders[0] / file, folder=file.endswith("/"))
    monkeypatch.setenv("FEDASMU_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedasmu.data.places.SYSTEM_DIRECTORIES", ())
    plan = reproduce.plan(STUDIES["table1"], BUDGETS["small"], [], RECIPES, tmp_path, [])
    assert {part.title: reason for part, reason in plan.left_out.items()} == {
        "resnet-cifar-100": "too slow for this budget",
        "resnet-tiny-imagenet": "tiny-imagenet is not on this machine: `fedasmu data prepare tiny-imagenet` gets it",
    }
    assert len(plan.all_cells) == 4 * 11
    assert plan.all_cells[0].config.stop.uploads == 300
    asked = reproduce.plan(STUDIES["table1"], BUDGETS["small"], [], RECIPES, tmp_path, ["stop.uploads=7"])
    assert {cell.config.stop.uploads for cell in asked.all_cells} == {7}  # not a share of them
    assert [part.title for part in asked.left_out] == ["resnet-tiny-imagenet"]
    missing = reproduce.plan(STUDIES["devices"], BUDGETS["small"], [], tmp_path, tmp_path, [])
    assert list(missing.left_out.values()) == ["there is no recipe lenet-fashion-mnist"]
    with pytest.raises(UserError, match="this study has: lenet-cifar-10, cnn"):
        reproduce.plan(STUDIES["ablation"], BUDGETS["small"], ["lenet"], RECIPES, tmp_path, [])


def tiny_study(out: Path, *options: str) -> Result:
    tiny = ("data.name=fashion-mnist-small", "model=softmax", "local.epochs=1", "stop.uploads=20")
    sets = [text for change in tiny for text in ("--set", change)]
    command = ["reproduce", "slots", "--only", "lenet-fashion-mnist", *sets, "--workers", "inline", "--out", str(out)]
    return CliRunner().invoke(app, [*command, *options])


def test_settings_that_were_found_elsewhere(tmp_path: Path) -> None:
    found = tmp_path / "tuned.json"
    found.write_text(json.dumps({"best": {"fedasmu-h1": ["local.lr=0.07"]}}))
    result = tiny_study(tmp_path / "runs", "--tuned", str(found))
    assert result.exit_code == 0, result.output
    rates = {
        label: load(tmp_path / "runs/lenet-fashion-mnist" / label / "seed-0/config.toml").local.lr for label in SLOTS
    }
    assert rates == {label: 0.07 if label == "fedasmu-h1" else 0.005 for label in SLOTS}


def test_as_many_seeds_as_one_asks_for(tmp_path: Path) -> None:
    assert tiny_study(tmp_path, "--seeds", "2").exit_code == 0
    assert (tmp_path / "lenet-fashion-mnist/fedasmu/seed-1/summary.json").is_file()
    assert "Budget small: 2 seeds; 20 uploads" in (tmp_path / "slots.md").read_text()


def test_settings_are_found_or_given(tmp_path: Path) -> None:
    result = tiny_study(tmp_path / "runs", "--tuned", "tuned.json", "--tune", "2")
    assert isinstance(result.exception, UserError)
    assert "give one of them" in str(result.exception)
    assert not (tmp_path / "runs").exists()


def test_more_trials_than_there_are_rates_are_refused_by_the_name_that_was_given(tmp_path: Path) -> None:
    result = tiny_study(tmp_path / "runs", "--tune", "12")
    assert "--tune = 12: must be 1 to 9" in str(result.exception)
    assert not (tmp_path / "runs").exists()


def test_the_command_on_a_tiny_budget(tmp_path: Path) -> None:
    result = tiny_study(tmp_path)
    assert result.exit_code == 0, result.output
    assert "not run: lenet-cifar-10: --only names others" in result.output
    assert "fedasmu is more accurate than fedasmu-h1" in result.output
    assert (tmp_path / "lenet-fashion-mnist/fedasmu-h3/seed-0/summary.json").is_file()
    report = (tmp_path / "slots.md").read_text()
    assert "not run: lenet-cifar-10" in report
    assert "Budget small: 1 seed; 20 uploads for lenet-fashion-mnist." in report  # what was run, not what is usual
    assert "undecided" in report
    assert "| holds" not in report


@pytest.mark.parametrize(
    ("study", "options", "takes"),
    [
        ("theorem", ("--seeds", "2", "--set", "fleet.preset=base"), "--out"),
        ("clock", ("--seeds", "2"), "--set and --out"),
    ],
)
def test_an_option_that_a_study_has_no_use_for_is_refused(study: str, options: tuple[str, ...], takes: str) -> None:
    given = ", ".join(option for option in options if option.startswith("--"))
    assert said("reproduce", study, *options) == f"{given}: nothing to choose for {study}, which takes {takes} alone"


@pytest.mark.parametrize("study", ["clock", "theorem", "table2"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(study: str) -> None:
    assert said("reproduce", study, "--out", __file__) == f"out = {__file__}: cannot be written: Not a directory"
