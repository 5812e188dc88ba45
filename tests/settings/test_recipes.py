"""Every recipe says what the paper prints, and runs; so does every variation that a study names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedasmu import Experiment, FederatedData, Result
from fedasmu.cli import app
from fedasmu.commands.listing import keys, recipes
from fedasmu.data import describe
from fedasmu.errors import UserError
from fedasmu.settings.config import Config
from fedasmu.settings.fleets import PRESETS_OF_FLEETS
from fedasmu.settings.packaged import RECIPES
from fedasmu.settings.recipe import load, override, parse
from helpers.blobs import Run
from helpers.repository import ROOT

NAMES = sorted(path.stem for path in RECIPES.glob("*.toml"))
REFERENCE = ROOT / "docs" / "reference"

# The paper's hyper-parameters: the rates of lambda, sigma, iota, gamma, upsilon and SGD; and the target accuracy.
PRINTED = """
lenet-fashion-mnist   0.0001  0.0001  0.0001  0.0001  0.0001  0.005  0.70
lenet-cifar-10        0.001   0.001   0.1     0.1     0.001   0.03   0.30
lenet-cifar-100       0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.13
cnn-cifar-10          0.001   0.001   0.0001  0.1     0.001   0.028  0.40
cnn-cifar-100         0.00001 0.00001 0.00001 0.00001 0.00001 0.013  0.15
resnet-cifar-100      0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.25
resnet-tiny-imagenet  0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.12
alexnet-cifar-10      0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.40
alexnet-cifar-100     0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.12
vgg-cifar-10          0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.45
vgg-cifar-100         0.0001  0.0001  0.0001  0.0001  0.0001  0.03   0.12
textcnn-imdb          0.0001  0.0001  0.0001  0.0001  0.0001  0.001  0.85
"""
COLUMNS = PRINTED.strip().splitlines()
RATES = ("lambda", "sigma", "iota", "gamma", "upsilon")


def recipe(name: str, *overrides: str) -> Config:
    return load(RECIPES / f"{name}.toml", overrides)


def stand_in(name: str) -> FederatedData:
    """Eight examples of this data set's shape on each of four devices."""
    known, generator = describe(name), torch.Generator().manual_seed(0)
    if known.text:
        inputs = torch.randint(0, 100, (36, 50), generator=generator)
    else:
        inputs = torch.randn((36, *known.shape), generator=generator)
    targets = torch.randint(known.classes, (36,), generator=generator)
    shards = [range(device * 8, device * 8 + 8) for device in range(4)]
    return FederatedData.of((inputs[:32], targets[:32]), (inputs[32:], targets[32:]), shards, known.classes)


UPLOADS = 4


def try_out(config: Config, out: Path) -> Result:
    """Four uploads of two epochs, and two devices at once, so that models become stale."""
    pacing = config.pacing.model_copy(update={"max_in_flight": 2})
    local = config.local.model_copy(update={"epochs": 2})
    small = config.scaled(UPLOADS / config.stop.uploads).model_copy(update={"pacing": pacing, "local": local})
    return Experiment(small, data=stand_in(config.data.name)).run(out)


@pytest.mark.parametrize("line", COLUMNS, ids=lambda line: str(line).split()[0])
def test_a_column_has_the_printed_hyper_parameters(line: str) -> None:
    name, *numbers = line.split()
    config = recipe(name)
    algorithm: Any = config.algorithm
    rates = [getattr(algorithm, f"lr_{rate}") for rate in RATES]
    assert [*rates, config.local.lr, *config.evaluate.targets] == [float(number) for number in numbers]
    assert (algorithm.name, algorithm.max_staleness, algorithm.lr_policy) == ("fedasmu", 99, 0.001)
    assert (config.stop.uploads, config.evaluate.every, config.fleet.devices) == (5000, 10, 100)
    model, _, data = name.partition("-")
    assert config.model.name.startswith(model)
    assert config.data.name == data


def test_there_is_a_recipe_for_each_column() -> None:
    assert {line.split()[0] for line in COLUMNS} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    result = try_out(recipe(name), tmp_path)
    assert result.summary["uploads"] == UPLOADS
    assert torch.isfinite(torch.tensor(result.curve["loss"][-1]))


def test_the_ablations_keep_the_recipes_control_rates() -> None:
    varied: Any = recipe("lenet-cifar-10", "algorithm.name=fedasmu-da").algorithm
    assert (varied.server_weights, varied.lr_gamma, varied.max_staleness) == ("polynomial", 0.1, 99)


def test_another_name_of_a_method_decides_what_it_stands_for() -> None:
    table = {"algorithm": {"name": "fedasmu-h1", "slots": "first", "lr_gamma": 0.5}}
    assert override(table, ["algorithm.name=fedasmu"])["algorithm"] == {"name": "fedasmu", "lr_gamma": 0.5}
    assert override(table, ["algorithm.name=fedavg"])["algorithm"] == {"name": "fedavg"}
    assert override(table, ["algorithm.name=nonsense"])["algorithm"] == {"name": "nonsense"}


@pytest.mark.parametrize("preset", PRESETS_OF_FLEETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_fleet_composes_with_every_recipe(name: str, preset: str) -> None:
    fleet = recipe(name, f"fleet.preset={preset}").fleet.model_dump(mode="json")
    decided = PRESETS_OF_FLEETS[preset][1]
    assert {key: fleet[key] for key in decided} == decided


def test_the_command_line_has_the_last_word() -> None:
    table = {"fleet": {"devices": 100, "jitter": 0.1}, "pacing": {"period": 7.0, "max_in_flight": 3}}
    given = ["fleet.preset=['devices-200', 'het110']", "fleet.spread=uniform", "pacing.preset=table"]
    config = parse(override(table, given) | {"algorithm": "fedavg"})
    fleet, pacing = config.fleet, config.pacing
    assert (fleet.devices, fleet.jitter, fleet.slowest_over_fastest, fleet.spread) == (200, 0.1, 110, "uniform")
    assert (pacing.period, pacing.count, pacing.max_in_flight) == (10, 10, 3)


@pytest.mark.parametrize(("factor", "uploads"), [(0.1, 500), (2, 10_000), (1e-9, 1)])
def test_a_budget_scales_uploads_and_time(factor: float, uploads: int) -> None:
    scaled = recipe("lenet-cifar-10", "stop.time=1000").scaled(factor)
    assert (scaled.stop.uploads, scaled.stop.time) == (uploads, 1000 * factor)


def test_half_a_budget_is_the_first_half_of_the_run(run: Run) -> None:
    whole, half = (run(algorithm={"name": "fedasmu"}, stop={"uploads": uploads}) for uploads in (60, 30))
    lines = (half.directory / "metrics.csv").read_text().splitlines()
    assert len(lines) > 6
    assert lines == (whole.directory / "metrics.csv").read_text().splitlines()[: len(lines)]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_must_be_a_number_above_0(factor: float) -> None:
    with pytest.raises(UserError, match="budget = "):
        recipe("quickstart").scaled(factor)


def test_a_budget_on_the_command_line(tmp_path: Path) -> None:
    small = ["--set", "data.name=fashion-mnist-small", "--set", "fleet.devices=20", "--workers", "inline"]
    given = ["run", "lenet-fashion-mnist", "--budget", "0.002", *small, "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert Result(tmp_path / "run").summary["uploads"] == 10
    refused = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "run"), "--budget", "2"])
    assert "--budget" in str(refused.exception)


def test_the_pages_name_every_recipe_and_every_key() -> None:
    page = (REFERENCE / "recipes.md").read_text()
    assert [f"| `{row['name']}` | {row['description']} |" for row in recipes()] == re.findall(r"^\| `.*$", page, re.M)
    page = (REFERENCE / "config.md").read_text()
    expected = [f"| `{row['key']}` | `{row['default']}` | {row['allowed']} | {row['meaning']} |" for row in keys()]
    assert re.findall(r"^\| `.*$", page, re.M) == expected
    assert all(row["meaning"] for row in keys())
    listed = CliRunner().invoke(app, ["list", "keys", "--json"])
    assert json.loads(listed.output) == keys()
