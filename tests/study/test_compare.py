"""Grids of runs: what is run, what is not run again, what a failure leaves of the others, and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from filelock import FileLock
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from fedasmu import FederatedData, Result
from fedasmu.cli import app
from fedasmu.errors import Interrupted, UserError
from fedasmu.experiment import Experiment
from fedasmu.report.league import find
from fedasmu.run import trackers
from fedasmu.settings.recipe import load as recipe_of
from fedasmu.study import grid, variants
from fedasmu.study.board import Board, Estimate
from fedasmu.study.cells import Cell, cells, stages
from helpers.blobs import blobs, outputs, settings
from helpers.repository import ROOT

FILES = ("config.toml", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json")


def data() -> FederatedData:
    return blobs()


def network() -> nn.Module:
    return nn.Linear(20, 2)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The blobs as a file: ten devices, twenty uploads."""
    monkeypatch.chdir(Path(__file__).parent)  # where workers find this module
    table = settings(data={"name": "test_compare:data"}, model={"name": "test_compare:network"}, stop={"uploads": 20})
    path = tmp_path / "blobs.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def board() -> Board:
    return Board(Console(quiet=True))


def make(
    recipe: Path, methods: str = "fedasync,fedavg", seeds: int = 1, out: str = "grid", **more: object
) -> list[Cell]:
    chosen, place = variants.read(methods), recipe.parent / out
    return cells(recipe, chosen, range(seeds), place, allow_code=True, **more)  # type: ignore[arg-type]


def run(recipe: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", str(recipe), "--allow-code", "--workers", "inline", *options])
    if isinstance(result.exception, UserError):  # main() turns it into a message and exit code 2
        return 2, str(result.exception)
    return result.exit_code, result.output


def stamps(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def test_methods_are_read_with_settings_and_labels() -> None:
    found = variants.read("fedasmu, fedasync(alpha=0.9,local.lr=0.02), strong=fedbuff(buffer=[1,2]), mine.methods:Own")
    assert found == [
        variants.Variant("fedasmu", "fedasmu"),
        variants.Variant(
            "fedasync-alpha-0.9-lr-0.02", "fedasync", ("algorithm.alpha=0.9", "local.lr=0.02"), base="fedasync"
        ),
        variants.Variant("strong", "fedbuff", ("algorithm.buffer=[1,2]",), base="fedbuff"),
        variants.Variant("mine.methods-Own", "mine.methods:Own"),
    ]
    assert [one.label for one in variants.read("slots,fedasmu")] == [
        "fedasmu",
        "fedasmu-h1",
        "fedasmu-h2",
        "fedasmu-h3",
    ]


def test_an_axis_applies_to_the_methods_that_have_it() -> None:
    axes = [variants.axis("fedasync.alpha=0.3,0.6", "--vary"), variants.axis("local.lr=0.1", "--vary")]
    labels = [one.label for one in variants.crossed(variants.read("fedasync,fedavg"), axes, "--vary")]
    assert labels == ["fedasync-alpha-0.3-lr-0.1", "fedasync-alpha-0.6-lr-0.1", "fedavg-lr-0.1"]


def test_an_ablation_keeps_the_recipes_settings_and_a_rival_does_not(tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(tomli_w.dumps(settings(algorithm={"name": "fedasmu", "lr_iota": 0.1})))
    whole, without, rival = (cell.config.algorithm.model_dump() for cell in make(recipe, "fedasmu,fedasmu-fa,fedbuff"))
    assert whole["lr_iota"] == without["lr_iota"] == 0.1
    assert (whole["merge"], without["merge"]) == (True, False)
    assert "lr_iota" not in rival


def test_the_first_method_is_the_reference_unless_one_is_named(recipe: Path) -> None:
    options = ("--methods", "fedasync,fedavg", "--seeds", "1", "--out", str(recipe.parent / "grid"))
    _, text = run(recipe, *options)
    assert "as long as fedasync" in text
    order = (recipe.parent / "grid/methods.txt").read_text().split()
    assert order == ["fedasync", "fedavg"]
    _, text = run(recipe, *options, "--reference", "fedavg")
    assert "as long as fedavg" in text
    code, text = run(recipe, *options, "--reference", "fedagv")
    assert code == 2
    assert "did you mean fedavg?" in text


def test_the_command_ends_in_a_table_and_does_nothing_the_second_time(recipe: Path) -> None:
    out = recipe.parent / "grid"
    options = ("--methods", "fedasync,fedavg", "--seeds", "2", "--first-seed", "3", "--out", str(out))
    code, first = run(recipe, *options)
    assert code == 0, first
    assert "fedasync" in first
    assert "s to 0.9" in first
    assert sorted(path.name for path in (out / "fedavg").glob("seed-*")) == ["seed-3", "seed-4"]
    before = stamps(out)
    code, second = run(recipe, *options)
    assert code == 0
    assert "4 of 4 runs are finished already" in second
    assert stamps(out) == before
    assert first[first.index("┏") :] == second[second.index("┏") :]


def test_the_same_command_goes_on_where_the_packages_data_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedasmu.data.places.SYSTEM_DIRECTORIES", ())
    line = ["compare", "quickstart", "--methods", "fedavg", "--seeds", "1", "--set", "stop.uploads=2"]
    line += ["--set", "model=softmax", "--workers", "inline", "--out", str(tmp_path / "grid")]
    first = CliRunner().invoke(app, line)
    assert "fashion-mnist is not here: using fashion-mnist-small" in first.output
    again = CliRunner().invoke(app, line)
    assert "1 of 1 runs are finished already" in again.output, again.exception
    changed = CliRunner().invoke(app, [*line, "--set", "local.lr=0.5"])
    assert "other settings (local.lr)" in str(changed.exception)


def test_the_same_comparison_of_times_alone_goes_on(tmp_path: Path) -> None:
    """It reads no data, so nothing stands in for them."""
    line = ["compare", "quickstart", "--methods", "fedavg", "--seeds", "1", "--set", "stop.uploads=2"]
    line += ["--set", "timing_only=true", "--workers", "inline", "--out", str(tmp_path / "grid")]
    assert CliRunner().invoke(app, line).exit_code == 0
    again = CliRunner().invoke(app, line)
    assert "1 of 1 runs are finished already" in again.output, again.exception


def test_a_comparison_of_times_alone_ends_in_a_table_too(recipe: Path) -> None:
    out = recipe.parent / "times"
    code, text = run(recipe, "--seeds", "2", "--set", "timing_only=true", "--out", str(out))
    assert code == 0, text
    mean = sum(Result(out / "fedasync" / f"seed-{seed}").summary["virtual_seconds"] for seed in (0, 1)) / 2
    assert f"│ fedasync │ {mean:9,.0f} │" in text
    assert "fedasmu report" not in text
    with pytest.raises(UserError, match="no finished run there; 2 simulated the order of events alone"):
        find([out])


def test_in_parallel_the_bytes_are_the_same(recipe: Path) -> None:
    assert grid.run(make(recipe, out="one", seeds=2), "inline", board()) == []
    assert grid.run(make(recipe, out="two", seeds=2), 2, board()) == []
    for cell in make(recipe, out="one", seeds=2):
        twin = recipe.parent / "two" / cell.label / f"seed-{cell.seed}"
        assert outputs(Result(cell.directory)) == outputs(Result(twin))


def test_an_interrupted_cell_is_resumed_and_finished_ones_are_not_touched(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, rest = make(recipe, seeds=1, out="whole"), make(recipe, seeds=1)
    grid.run(whole, "inline", board())
    grid.run(rest[:1], "inline", board())
    before = stamps(rest[0].directory)

    def stop(board: Board, cell: Cell, message: tuple[str, object]) -> None:
        if message[0] == "uploads":
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Board, "heard", stop)
        with pytest.raises(Interrupted):
            grid.run(rest, "inline", board())
    assert rest[1].stage() == "begun"
    assert grid.run(rest, "inline", board()) == []
    assert stamps(rest[0].directory) == before
    assert outputs(Result(rest[1].directory)) == outputs(Result(whole[1].directory))


def test_killed_at_any_moment_the_same_command_goes_on(recipe: Path) -> None:
    """The command is killed without warning; its worker notices, saves and ends, and what is left is completed."""
    whole = make(recipe, "fedasync", out="whole", overrides=["stop.uploads=400"])
    again = make(recipe, "fedasync", overrides=["stop.uploads=400", "checkpoint_seconds=0.05"])
    grid.run(whole, "inline", board())
    options = ["--methods", "fedasync", "--seeds", "1", "--set", "stop.uploads=400", "--set", "checkpoint_seconds=0.05"]
    command = [sys.executable, "-m", "fedasmu", "compare", str(recipe), *options, "--workers", "1", "--allow-code"]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/study'}"}
    process = subprocess.Popen([*command, "--out", str(recipe.parent / "grid")], env=os.environ | paths)
    begun, end = again[0].directory / "metrics.csv", time.monotonic() + 60
    while not begun.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert begun.exists(), "the command never began"
    assert grid.run(again, "inline", board()) == []
    assert outputs(Result(again[0].directory)) == outputs(Result(whole[0].directory))


CTRL_C = """
import multiprocessing, os, signal
from fedasmu.study.forking import start_method

context = multiprocessing.get_context(start_method())
try:
    os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does: to all processes of the command
    signal.pause()
except KeyboardInterrupt:
    pass
process = context.Process(target=print, args=("still there",))
process.start()
process.join()
"""


def test_ctrl_c_while_the_processes_are_prepared_is_the_commands_alone() -> None:
    command = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert done.stdout == "still there\n"
    assert "Traceback" not in done.stderr


def test_a_cell_that_fails_does_not_lose_the_others(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Experiment.run

    def failing(self: Experiment, out: Path, **options: object) -> Result:
        if self.config.algorithm.name == "fedasync":
            raise ZeroDivisionError("the pole")
        return usual(self, out, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Experiment, "run", failing)
    code, text = run(recipe, "--methods", "fedasync,fedavg", "--seeds", "2", "--out", str(recipe.parent / "grid"))
    assert code == 1
    assert "failed: fedasync, seed 0; fedasync, seed 1: ZeroDivisionError: the pole" in text
    assert "ZeroDivisionError" in (recipe.parent / "grid/fedasync/seed-0/error.txt").read_text()
    assert Result(recipe.parent / "grid/fedavg/seed-0").summary["uploads"] == 20
    said: list[str] = []
    assert len(find([recipe.parent / "grid"], said.append)) == 2
    assert [line.partition("/grid/")[2] for line in said] == [
        f"fedasync/seed-{seed}: ZeroDivisionError: the pole" for seed in (0, 1)
    ], "a report names what is missing from it"
    assert "fedasmu report" in text
    _, text = run(recipe, "--methods", "fedasync", "--seeds", "1", "--out", str(recipe.parent / "none"))
    assert "fedasmu report" not in text, "there is nothing to report of"


def test_a_comparison_is_tracked_run_by_run(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[str, float]] = []

    class Notes:
        def __init__(self, directory: Path) -> None:
            self.label = directory.parent.name

        def start(self, config: Mapping[str, Any]) -> None: ...

        def log(self, row: Mapping[str, Any]) -> None:
            rows.append((self.label, row["uploads"]))

        def finish(self, summary: Mapping[str, Any]) -> None: ...

    monkeypatch.setitem(trackers.TRACKERS, "notes", Notes)
    out = str(recipe.parent / "tracked")
    code, text = run(recipe, "--methods", "fedasync,fedavg", "--seeds", "1", "--out", out, "--track", "notes")
    assert code == 0, text
    assert {label for label, _ in rows} == {"fedasync", "fedavg"}
    code, text = run(recipe, "--out", out, "--track", "nots")
    assert "--track nots: there is tensorboard" in text


def test_a_worker_that_dies_is_a_failed_cell(recipe: Path) -> None:
    dying = make(recipe, "fedavg", overrides=["data.name=test_compare:deadly"])
    ((cell, reason),) = grid.run([*dying, *make(recipe, "fedasync")], 2, board())
    assert cell.label == "fedavg"
    assert "ended with code" in reason
    assert (recipe.parent / "grid/fedasync/seed-0/summary.json").exists()


def test_two_commands_do_not_run_the_same_cell(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "PATIENCE", 0.1)
    (cell,) = make(recipe, "fedavg")
    cell.directory.parent.mkdir(parents=True)
    with FileLock(cell.directory.parent / ".seed-0.lock"):
        ((_, reason),) = grid.run([cell], "inline", board())
    assert "another process" in reason
    assert grid.run([cell], "inline", board()) == []


def deadly() -> FederatedData:
    os._exit(9)


def test_other_settings_are_refused_or_replaced(recipe: Path) -> None:
    grid.run(make(recipe, "fedavg"), "inline", board())
    (other,) = make(recipe, "fedavg", overrides=["local.lr=0.2"])
    with pytest.raises(UserError, match=r"other settings \(local.lr\)"):
        other.stage()
    assert other.stage(overwrite=True) == "new"
    assert not other.directory.exists()


def test_a_refusal_names_every_run_that_it_concerns_and_removes_none(recipe: Path) -> None:
    grid.run(make(recipe, "fedavg", seeds=2), "inline", board())
    changed = make(recipe, "fedavg,fedasync", overrides=["local.lr=0.2"], seeds=2)
    with pytest.raises(UserError, match=r"fedavg/seed-0, \S+fedavg/seed-1 were made with other settings \(local.lr\)"):
        stages(changed)
    strange = [cell.directory for cell in changed if cell.label == "fedasync"]
    for directory in strange:
        directory.mkdir(parents=True)
        (directory / "thesis.tex").touch()
    with pytest.raises(UserError, match=f"{strange[0]}, {strange[1]}: not a run directory"):
        stages(changed, overwrite=True)
    assert all(cell.directory.exists() for cell in changed)


def test_what_a_kill_left_before_the_run_began_is_cleared(recipe: Path) -> None:
    (cell,) = make(recipe, "fedavg")
    cell.directory.mkdir(parents=True)
    (cell.directory / "fleet.csv").touch()
    assert cell.stage() == "new"
    cell.directory.mkdir()
    (cell.directory / "thesis.tex").touch()
    with pytest.raises(UserError, match="not a run directory"):
        cell.stage()


def test_a_method_that_is_slow_is_expected_to_stay_slow(recipe: Path) -> None:
    """20 uploads each: fedasync takes 1 s an upload, fedavg 3 s."""
    plan = make(recipe, seeds=2)
    estimate = Estimate(plan, workers=2)
    assert estimate.left() is None
    for cell, seconds in zip(plan[:2], (20.0, 60.0), strict=True):
        seen = estimate.seen[cell.directory]
        seen.uploads, seen.seconds, seen.over = 20, seconds, True
    assert estimate.left() == pytest.approx(60.0)  # 20 s on one core and 60 s on the other
    estimate.workers = 1
    assert estimate.left() == pytest.approx(80.0)


def test_a_task_is_expected_to_cost_what_it_has_cost(recipe: Path) -> None:
    """fedasync takes 1 s an upload here and 0.1 s with another model, of which fedavg has not been seen either."""
    here, *_ = make(recipe)
    other = make(recipe, out="other", overrides=["model=mlp"])
    estimate = Estimate([here, *other], workers=1)
    for cell, uploads, seconds in ((here, 20, 20.0), (other[0], 10, 1.0)):
        seen = estimate.seen[cell.directory]
        seen.uploads, seen.seconds, seen.over = uploads, seconds, uploads == 20
    assert estimate.left() == pytest.approx(1.0 + 2.0)  # ten uploads of fedasync and twenty of fedavg


def test_an_ablation_of_a_complete_recipe_is_one(tmp_path: Path) -> None:
    """A run's config.toml has every key of its method, also those that the names of the ablations decide."""
    complete = tmp_path / "complete.toml"
    complete.write_text(recipe_of(ROOT / "recipes/quickstart.toml", ["algorithm.name=fedasmu"]).toml())
    made = cells(complete, variants.read("ablation,slots"), [0], tmp_path)
    found = {cell.label: cell.config.algorithm for cell in made}
    assert found["fedasmu-0"] == recipe_of(complete, ["algorithm.name=fedasmu-0"]).algorithm
    assert len({one.model_dump_json(exclude={"name"}) for one in found.values()}) == len(found)


def test_tuned_settings_are_used(recipe: Path) -> None:
    tuned = recipe.parent / "tuned.json"
    tuned.write_text(json.dumps({"best": {"fedasync": ["algorithm.alpha=0.9", "local.lr=0.2"]}}))
    out = recipe.parent / "grid"
    code, text = run(recipe, "--methods", "fedasync,fedavg", "--seeds", "1", "--tuned", str(tuned), "--out", str(out))
    assert code == 0
    assert "no settings for fedavg" in text
    config = Result(out / "fedasync/seed-0").config
    assert (config["algorithm"]["alpha"], config["local"]["lr"]) == (0.9, 0.2)
    assert Result(out / "fedavg/seed-0").config["local"]["lr"] == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "fedavgg"), "did you mean fedavg"),
        (("--methods", "fedavg("), "methods: fedavg(: the brackets do not match"),
        (("--methods", "fedprox(mu=1,algorithm.mu=2)"), "mu is given twice"),
        (("--methods", "fedavg(alpha)"), "write it as key=value"),
        (("--methods", "fedavg(alpha=1)"), "algorithm.alpha: unknown key"),
        (("--methods", ","), "at least one"),
        (("--methods", ""), "at least one"),
        (("--methods", "a=fedavg,a=fedasync"), "labelled 'a': give one a label of its own, as in mine=fedavg"),
        (("--seeds", "0"), "greater than or equal to 1"),
        (("--first-seed", "-1"), "greater than or equal to 0"),
        (("--vary", "lr=1,2"), "name the section too, as in local.lr"),
        (("--vary", "alpha=1,2"), "name the section too, as in algorithm.alpha or data.alpha"),
        (("--vary", "engine=native,torch"), "--vary engine: it is of no section"),
        (("--vary", "seed=1,2"), "--vary seed: the number of seeds says which ones run"),
        (("--vary", "local.lr=1", "--vary", "local.lr=2"), "--vary local.lr is given twice"),
        (("--vary", "fedbuff.buffer=1,2"), "none of the methods has it"),
        (("--vary", "local.lr=1,oops"), "local.lr"),
        (("--set", "algorithm.name=fedavg"), "--set algorithm.name: the list of methods says which ones run"),
        (("--set", "seed=3"), "--set seed: the number of seeds says which ones run"),
        (("--budget", "0"), "must be a number above 0"),
        (("--workers", "0"), "must be a number, 1 or more"),
        (("--tuned", "nowhere.json"), "cannot be read"),
        (("--reference", "fedavgg"), "not among the methods"),
        (("--out", __file__), f"out = {__file__}: cannot be written: Not a directory"),
        (("--out", "/proc/grid"), "out = /proc/grid: cannot be written"),
    ],
)
def test_bad_input_is_one_clear_message(recipe: Path, options: tuple[str, ...], message: str) -> None:
    code, text = run(recipe, *options)
    assert code == 2
    assert message in text
    assert "Traceback" not in text
