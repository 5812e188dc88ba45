"""Tuning: judged on held-out training data, the best setting of each method kept, the test data never looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedasmu import Result
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.report.standing import Run, Standing
from fedasmu.study import sweep
from helpers.made_runs import made_run

TINY = ["data.name=fashion-mnist-small", "fleet.devices=5", "stop.uploads=3", "evaluate.every=3", "local.epochs=1"]
RECIPE = """
model = "softmax"
[data]
name = "fashion-mnist-small"
[algorithm]
name = "fedasync"
"""


def run(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*options, "--workers", "inline"])
    return (2, str(result.exception)) if isinstance(result.exception, UserError) else (result.exit_code, result.output)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def test_a_sweep_holds_out_training_data_and_a_comparison_uses_what_it_found(recipe: Path) -> None:
    out, sets = recipe.parent / "swept", [text for key in TINY for text in ("--set", key)]
    grid = ["--grid", "local.lr=1e-6,0.05", "--grid", "fedasync.alpha=0.9"]
    code, text = run("sweep", str(recipe), "--methods", "fedasync,fedavg", *grid, *sets, "--out", str(out))
    assert code == 0, text
    best = json.loads((out / "tuned.json").read_text())["best"]
    assert best == {"fedasync": ["local.lr=0.05", "algorithm.alpha=0.9"], "fedavg": ["local.lr=0.05"]}
    runs = [Result(path.parent) for path in out.rglob("summary.json")]
    assert len(runs) == 4
    assert {one.config["data"]["held_out"] for one in runs} == {0.1}
    compared = recipe.parent / "compared"
    tuned = ["--tuned", str(out), "--seeds", "1", "--out", str(compared)]
    code, text = run("compare", str(recipe), "--methods", "fedavg", *sets, *tuned)
    assert code == 0, text
    config = Result(compared / "fedavg/seed-0").config
    assert (config["local"]["lr"], config["data"]["held_out"]) == (0.05, 0.0)


def test_a_sweep_goes_on_from_what_an_earlier_one_found(recipe: Path) -> None:
    (recipe.parent / "tuned.json").write_text(json.dumps({"best": {"fedasync": ["local.lr=0.05"]}}))
    out, sets = recipe.parent / "second", [text for key in TINY for text in ("--set", key)]
    more = ["--tuned", str(recipe.parent), "--grid", "local.weight_decay=0,0.5", "--out", str(out)]
    code, text = run("sweep", str(recipe), "--methods", "fedasync,fedavg", *sets, *more)
    assert code == 0, text
    assert "has no settings for fedavg" in text
    tried = json.loads((out / "tuned.json").read_text())["table"]
    settings = {(one["method"], *one["settings"]) for one in tried}
    decays = ("local.weight_decay=0", "local.weight_decay=0.5")
    assert settings == {*(("fedasync", "local.lr=0.05", one) for one in decays), *(("fedavg", one) for one in decays)}
    config = Result(out / "fedasync-weight_decay-0.5/seed-0").config
    assert (config["local"]["lr"], config["local"]["weight_decay"]) == (0.05, 0.5)


def tried(tmp_path: Path, value: str, accuracy: float, key: str = "local.lr") -> sweep.Tried:
    change = f"{key}={value}"
    result = made_run(tmp_path / value / "seed-0", "fedasync", curve=[(0, accuracy)], overrides=[change])
    return sweep.Tried("fedasync", (change,), Standing(value, (Run(result, value),)))


def test_the_best_is_the_first_of_its_method(tmp_path: Path) -> None:
    results = [tried(tmp_path, "0.1", 0.8), tried(tmp_path, "0.2", 0.7)]
    assert sweep.best(results) == {"fedasync": ["local.lr=0.1"]}
    path = sweep.write(results, "tiny", tmp_path)
    assert sweep.read(path) == sweep.read(tmp_path) == {"fedasync": ["local.lr=0.1"]}
    assert [line["accuracy"] for line in json.loads(path.read_text())["table"]] == [0.8, 0.7]
    assert [row[3] for row in sweep.table(results).rows] == ["best", ""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "what is to be tried"),
        (("--grid", "local.lr"), "write it as key=value"),
        (("--grid", "local.lr="), "write it as key=value"),
        (("--grid", "algorithm.buffer=1,2"), "none of the methods has it"),
        (("--grid", "local.nonsense=1,2"), "local.nonsense"),
        (("--grid", "local.lr=0.1", "--set", "data.held_out=0"), "training data to judge on"),
        (("--grid", "data.held_out=0.2"), "give all one share, as in --set data.held_out=0.2"),
        (("--grid", "local.lr=0.1", "--set", "timing_only=true"), "timing_only = true: a sweep judges models"),
        (("--grid", "local.lr=0.1", "--out", __file__), f"out = {__file__}: cannot be written: Not a directory"),
        (("--trials", "2", "--out", __file__), f"out = {__file__}: cannot be written: Not a directory"),
        (("--grid", "local.lr=0.1", "--set", "data.name=helpers.blobs:blobs"), "cannot hold out"),
    ],
)
def test_bad_grids(recipe: Path, options: tuple[str, ...], message: str) -> None:
    code, text = run("sweep", str(recipe), *options)
    assert code == 2
    assert message in text


@pytest.mark.parametrize("text", ["", "[]", '{"best": 3}', '{"other": {}}'])
def test_a_file_that_no_sweep_wrote(tmp_path: Path, text: str) -> None:
    (tmp_path / "tuned.json").write_text(text)
    with pytest.raises(UserError, match="not what a sweep writes"):
        sweep.read(tmp_path)


def test_only_a_method_that_was_not_tuned_is_named(recipe: Path) -> None:
    """Where the recipe as it is was best, there is nothing to say."""
    (recipe.parent / "tuned.json").write_text(json.dumps({"best": {"fedavg": []}}))
    sets = [text for key in TINY for text in ("--set", key)]
    options = ["--tuned", str(recipe.parent / "tuned.json"), "--seeds", "1", "--out", str(recipe.parent / "out")]
    code, text = run("compare", str(recipe), "--methods", "fedavg,fedbuff", *sets, *options)
    assert code == 0, text
    assert "has no settings for fedbuff" in text
    assert "has no settings for fedavg" not in text


def test_a_best_at_the_edge_of_its_grid_is_pointed_out(tmp_path: Path) -> None:
    results = [tried(tmp_path, name, score) for name, score in (("0.1", 0.9), ("0.03", 0.8), ("0.01", 0.7))]
    assert sweep.at_an_edge(results) == ["fedasync: local.lr = 0.1 is the largest that was tried"]
    assert sweep.at_an_edge([results[1], results[0], results[2]]) == [], "with others on both sides"
    assert sweep.at_an_edge(results[:1]) == [], "one value alone is no grid"
    as_it_is = replace(results[2], changes=())
    assert sweep.at_an_edge([results[0], as_it_is]) == sweep.at_an_edge(results), "the recipe's own was tried too"
    assert sweep.at_an_edge([as_it_is, results[0]]) == ["fedasync: local.lr = 0.01 is the least that was tried"]
    decays = [
        tried(tmp_path / "decay", name, score, "local.weight_decay") for name, score in (("0", 0.9), ("0.1", 0.8))
    ]
    assert sweep.at_an_edge(decays) == [], "beyond 0 is nothing"
    assert sweep.at_an_edge(decays[::-1]) == ["fedasync: local.weight_decay = 0.1 is the largest that was tried"]
    switches = [
        tried(tmp_path / "switch", name, score, "local.calibrate") for name, score in (("true", 0.9), ("false", 0.8))
    ]
    assert sweep.at_an_edge(switches) == [], "beyond true is nothing either"
