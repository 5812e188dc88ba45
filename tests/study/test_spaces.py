"""Fair tuning: as many trials for every method, the same learning rates, then settings that it has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedasmu import Experiment, Result
from fedasmu.algorithms import named
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.run.extension import differences
from fedasmu.settings.packaged import RECIPES
from fedasmu.settings.recipe import load
from fedasmu.study import variants
from fedasmu.study.cells import cells
from fedasmu.study.spaces import SPACES, between, check, with_rates, with_settings
from fedasmu.study.sweep import for_each
from fedasmu.study.variants import Variant
from helpers.blobs import blobs, settings, softmax


def _all(chosen: list[Variant], count: int, best_rate: str = "") -> list[Variant]:
    """All trials, where the given learning rate was best for every method."""
    best = {one.label: [f"local.lr={best_rate}"] if best_rate else [] for one in chosen}
    return [*with_rates(chosen, 0.03, count), *with_settings(chosen, best, 0.03, count)]


def _given(one: Variant) -> dict[str, str]:
    return dict(change.split("=") for change in one.changes)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_every_method_of_the_tables_has_as_many_trials(count: int) -> None:
    chosen = variants.read("tables")
    tried = _all(chosen, count, "0.096")
    assert Counter(one.method for one in tried) == {one.method: count for one in chosen}
    assert len({(one.method, one.changes) for one in tried}) == count * len(chosen)
    assert [one.label for one in tried if not one.changes] == [one.label for one in chosen]  # the recipe as it is


def test_learning_rates_come_first_and_are_the_same_for_all() -> None:
    tried = with_rates(variants.read("fedasmu-r,fedbuff,fedavg"), rate=0.03, count=6)
    assert [_given(one) for one in tried] == [{}, {"local.lr": "0.096"}, {"local.lr": "0.0096"}] * 3


def test_a_variants_own_learning_rate_is_not_tried_twice() -> None:
    """An earlier sweep may have found it among those that all try: then the recipe's own is tried beside it."""
    (found,) = variants.starting_from({"fedavg": ["local.lr=0.096"]}, variants.read("fedavg"))
    assert [_given(one)["local.lr"] for one in with_rates([found], 0.03, 6)] == ["0.096", "0.0096", "0.03"]
    for count in range(1, 10):
        assert len({_given(one)["local.lr"] for one in _all([found], count, "0.096")}) == count


def test_settings_of_its_own_are_tried_at_the_rate_that_was_best_for_a_method() -> None:
    chosen = variants.read("fedasmu-r,fedbuff,area,fedavg")
    best = {"fedasmu-r": ["local.lr=0.096"], "fedbuff": [], "area": ["local.lr=0.0096"], "fedavg": ["local.lr=0.096"]}
    ours, buffered, area, average = (
        [_given(one) for one in with_settings([one], best, rate=0.03, count=6)] for one in chosen
    )
    assert [one["local.lr"] for one in ours] == ["0.096"] * 3
    assert [set(one) for one in buffered] == [{"algorithm.buffer", "algorithm.server_lr"}] * 3
    assert area == [{"local.lr": "0.0096", "algorithm.buffer": "3"}, {"local.lr": "0.0537"}, {"local.lr": "0.017"}]
    assert average == [{"local.lr": "0.0537"}, {"local.lr": "0.017"}, {"local.lr": "0.0401"}]  # nothing of its own


@pytest.mark.parametrize("count", range(3, 10))
def test_no_method_tries_a_higher_or_lower_rate_than_all_do(count: int) -> None:
    chosen = variants.read("fedavg,area,fedbuff")
    tried: dict[str, set[float]] = {label: set() for label in ("fedavg", "area", "fedbuff")}
    for one in _all(chosen, count, "0.096"):
        tried[one.method].add(float(_given(one).get("local.lr", "0.03")))
    assert len({(min(rates), max(rates)) for rates in tried.values()}) == 1


def test_rates_in_between_fill_the_widest_gaps() -> None:
    assert between((1.0, 4.0, 0.25), 4) == pytest.approx([0.5, 2.0, 0.25 * 2**0.5, 0.5**0.5])


def test_a_method_that_is_given_settings_is_tuned_as_itself() -> None:
    (given,) = variants.read("fedbuff(buffer=3)")
    assert {one.base for one in _all([given], 4)} == {"fedbuff-buffer-3"}


def test_what_a_variant_says_itself_is_not_tuned_and_a_tuned_run_is_the_trial_that_was_best(tmp_path: Path) -> None:
    (given,) = variants.read("fedbuff(buffer=10,local.lr=0.2)")
    trials = _all([given], 5, "0.096")
    assert {_given(one).get("algorithm.buffer") for one in trials} == {"10"}
    recipe = RECIPES / "quickstart.toml"
    for trial in trials:
        (tried,) = cells(recipe, [trial], [0], tmp_path)
        (run,) = cells(recipe, [given], [0], tmp_path, tuned=for_each([given], {given.label: list(trial.changes)}))
        assert differences(tried.config, run.config) == []


def test_a_variant_keeps_its_own_settings_where_its_method_was_tuned(tmp_path: Path) -> None:
    (given,) = variants.read("fedbuff(buffer=10)")
    best = for_each([given], {"fedbuff": ["local.lr=0.2", "algorithm.buffer=2"]})
    (run,) = cells(RECIPES / "quickstart.toml", [given], [0], tmp_path, tuned=best)
    assert (run.config.local.lr, run.config.algorithm.model_dump()["buffer"]) == (0.2, 10)


def test_a_sweep_of_a_variant_starts_from_what_was_found_for_its_method() -> None:
    chosen = variants.read("fedbuff(buffer=10),mine=fedbuff(buffer=5)")
    first, mine = variants.starting_from({"fedbuff": ["local.lr=0.2"], "mine": ["local.lr=0.3"]}, chosen)
    assert first.changes == ("local.lr=0.2", "algorithm.buffer=10")
    assert mine.changes == ("local.lr=0.3", "algorithm.buffer=5")


def test_more_trials_of_its_own_settings_go_on_where_fewer_ended() -> None:
    chosen = variants.read("fedbuff,moon")
    few, many = (with_settings(chosen, {"fedbuff": [], "moon": []}, 0.03, count) for count in (4, 8))
    assert set(few) < set(many)


@pytest.mark.parametrize("method", SPACES)
def test_a_space_has_the_methods_own_settings_and_their_defaults(method: str) -> None:
    fields = named(method).model_fields
    defaults = {}
    for key, values in SPACES[method].items():
        assert fields[key].default in values
        defaults[f"algorithm.{key}"] = f"{fields[key].default:g}"
    for trial in _all(variants.read(method), 9):
        given = [f"algorithm.name={method}", *trial.changes]
        assert load(RECIPES / "quickstart.toml", given).algorithm.name == method
        assert _given(trial) != defaults  # these are tried already, as the method is


@pytest.mark.parametrize(("text", "stride"), [("fedasmu-r", "1"), ("fedasmu-r(calibrate=false)", "0")])
def test_what_a_variant_has_by_another_of_its_settings_is_not_tried_again(text: str, stride: str) -> None:
    (chosen,) = variants.read(text)  # without a calibration there is no stride
    tried = [_given(one)["algorithm.stride"] for one in with_settings([chosen], {chosen.label: []}, 0.1, 6)]
    assert sorted([*tried, stride]) == ["0", "0.5", "1", "2"]


POLYNOMIAL = [
    "fedasmu-da",
    "fedasmu-0",
    "fedasmu(server_weights=polynomial)",
]  # no learned weights, so no settings of them


@pytest.mark.parametrize("text", ["fedasmu", "fedasmu-fa", *POLYNOMIAL])
def test_what_is_tried_of_a_variants_own_changes_it(text: str, tmp_path: Path) -> None:
    (chosen,) = variants.read(text)
    own = [_given(one) for one in with_settings([chosen], {chosen.label: []}, 0.1, 9)]
    models = set()
    for place, changes in enumerate([_given(chosen), *own]):
        table = settings(algorithm={"name": chosen.method}, stop={"uploads": 20})
        run = Experiment(table, changes, model=softmax, data=blobs()).run(tmp_path / str(place))
        models.add((run.directory / "model.safetensors").read_bytes())
    assert len(models) == 1 + len(own) == 5


@pytest.mark.parametrize(
    "text", ["fedasync(staleness=constant)", "fedasync(staleness=hinge)", "fedasmu-r(correction=none)"]
)
def test_a_setting_that_does_nothing_beside_another_is_not_tried(text: str) -> None:
    (chosen,) = variants.read(text)
    tried = [_given(one) for one in with_settings([chosen], {chosen.label: []}, 0.1, 9)]
    assert len({tuple(one.items()) for one in tried}) == 4
    assert not any(one.keys() & {"algorithm.polynomial_a", "algorithm.stride"} for one in tried)


def test_no_more_trials_than_every_method_has() -> None:
    with pytest.raises(UserError, match="trials = 10: must be 1 to 9"):
        check(10)


TINY = ("data.name=fashion-mnist-small", "model=softmax", "fleet.devices=5", "local.epochs=1", "evaluate.every=2")
SETS = [text for change in TINY for text in ("--set", change)]


def test_one_command_tunes_and_reproduces(tmp_path: Path) -> None:
    command = ["reproduce", "slots", "--only", "lenet-fashion-mnist", "--tune", "3", "--set", "stop.uploads=8", *SETS]
    result = CliRunner().invoke(app, [*command, "--workers", "inline", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "tuning/lenet-fashion-mnist/tuned.json").read_text())
    assert set(found["best"]) == {"fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3"}
    tried = [line["settings"] for line in found["table"] if line["method"] == "fedasmu-h1"]
    assert len(found["table"]) == 12
    assert [] in tried
    rates, own = (
        {tuple(one) for one in tried if any(change.startswith(key) for change in one)} for key in ("local", "algorithm")
    )
    assert len(rates | own) == 2
    assert len(own) == 1  # at whichever rate was better
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
