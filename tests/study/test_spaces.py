"""Fair tuning: as many trials for every method, of settings that it has, and more of them go on where fewer ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedasmu import Result
from fedasmu.algorithms import named
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.packaged import RECIPES
from fedasmu.recipe import load
from fedasmu.study import variants
from fedasmu.study.spaces import SPACES, trials


def test_every_method_of_the_tables_has_as_many_trials() -> None:
    chosen = variants.read("tables")
    tried = trials(chosen, rate=0.03, count=9)
    assert len(tried) == 9 * len(chosen) == 99
    assert [one.label for one in tried[::9]] == [one.label for one in chosen]  # the recipe as it is comes first
    assert len({(one.method, one.changes) for one in tried}) == 99


def test_more_trials_go_on_where_fewer_ended() -> None:
    chosen = variants.read("fedbuff,fedavg")
    few, many = trials(chosen, 0.03, 3), trials(chosen, 0.03, 6)
    assert set(few) <= set(many)


def test_every_method_tries_the_same_learning_rates_and_settings_of_its_own() -> None:
    tried = trials(variants.read("fedasmu-r,fedbuff,area,fedavg"), rate=0.03, count=4)
    rates = [dict(change.split("=") for change in one.changes).get("local.lr") for one in tried]
    assert rates == [None, "0.096", "0.0096", "0.3"] * 4
    own = [[change for change in one.changes if change.startswith("algorithm.")] for one in tried]
    assert [len(settings) for settings in own] == [0, 2, 2, 2, 0, 2, 2, 2, 0, 1, 1, 1, 0, 0, 0, 0]
    assert own[1] != own[2] != own[3]  # drawn, not the defaults again and again


@pytest.mark.parametrize("method", SPACES)
def test_a_space_has_the_methods_own_settings_and_their_defaults(method: str) -> None:
    fields = named(method).model_fields
    for key, values in SPACES[method].items():
        assert fields[key].default in values
    for trial in trials(variants.read(method), 0.03, 9):
        given = [f"algorithm.name={method}", *trial.changes]
        assert load(RECIPES / "quickstart.toml", given).algorithm.name == method


def test_no_more_trials_than_every_method_has() -> None:
    with pytest.raises(UserError, match="trials = 10: must be 1 to 9"):
        trials(variants.read("fedavg"), 0.03, 10)


TINY = ("data.name=fashion-mnist-small", "model=softmax", "fleet.devices=5", "local.epochs=1", "evaluate.every=2")
SETS = [text for change in TINY for text in ("--set", change)]


def test_one_command_tunes_and_reproduces(tmp_path: Path) -> None:
    command = ["reproduce", "slots", "--only", "lenet-fashion-mnist", "--tune", "2", "--set", "stop.uploads=8", *SETS]
    result = CliRunner().invoke(app, [*command, "--workers", "inline", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "tuning/lenet-fashion-mnist/tuned.json").read_text())
    assert set(found["best"]) == {"fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3"}
    assert len(found["table"]) == 8
    assert all(len(line["seeds"]) == 2 and min(line["seeds"]) >= 100 for line in found["table"])
    run = Result(tmp_path / "lenet-fashion-mnist/fedasmu-h1/seed-0")
    tuned = Result(Path(next(line for line in found["table"] if line["method"] == "fedasmu-h1")["runs"][0]))
    assert run.config["local"]["lr"] == tuned.config["local"]["lr"]
    assert (run.config["data"]["held_out"], tuned.config["data"]["held_out"]) == (0.0, 0.1)


def test_a_sweep_wants_a_grid_or_trials_but_not_both(tmp_path: Path) -> None:
    for options in ([], ["--grid", "local.lr=0.1", "--trials", "2"]):
        refused = CliRunner().invoke(app, ["sweep", "quickstart", *options, "--out", str(tmp_path)])
        assert isinstance(refused.exception, UserError)
        assert "--grid" in str(refused.exception)
