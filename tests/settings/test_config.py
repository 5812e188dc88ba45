"""Recipes: TOML in, overrides applied, a complete TOML out that means the same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from fedasmu.algorithms import FedAsync, FedAvg
from fedasmu.errors import UserError
from fedasmu.settings.config import Config
from fedasmu.settings.recipe import load, override, parse
from helpers.blobs import settings
from helpers.repository import ROOT

RECIPES = sorted((ROOT / "fedasmu" / "recipes").glob("*.toml"))


def again(config: Config) -> Config:
    return parse(tomllib.loads(config.toml()))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_its_complete_form_means_the_same(path: Path) -> None:
    config = load(path)
    assert config.name == path.stem
    assert again(config) == config


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": {"time": 100.0}},
        {"fleet": {"preset": ["het110", "unreliable"], "devices": 7}},
        {"pacing": {"preset": "table", "max_in_flight": 3}},
        {"pacing": {"max_in_flight": 1.0}},
        {"model": "mlp"},
        {"model": {"name": "mlp", "hidden": 7}},
        {"algorithm": {"name": "fedasync", "max_staleness": 5, "staleness": "hinge"}},
        {"algorithm": "fedavg"},
        {"algorithm": {"name": "fedasmu", "max_staleness": "none"}},
        {"data": {"dir": "~/x"}, "seed": 2**70},
    ],
    ids=str,
)
def test_the_complete_form_means_the_same(changes: dict[str, Any]) -> None:
    config = parse(settings(**changes))
    assert again(config) == config


def test_paths_become_absolute_so_that_a_run_can_be_resumed_from_anywhere() -> None:
    config = parse(settings(data={"dir": "x"}, fleet={"trace": "~/t.csv"}))
    assert config.data.dir == Path.cwd() / "x"
    assert config.fleet.trace == Path.home() / "t.csv"


def test_a_recipe_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "my-recipe.toml").write_text('algorithm = "fedavg"')
    assert load(tmp_path / "my-recipe.toml").name == "my-recipe"
    (tmp_path / "my-recipe.toml").write_text('name = "other"\nalgorithm = "fedavg"')
    assert load(tmp_path / "my-recipe.toml").name == "other"


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("local.lr=0.01", ["local", "lr"], 0.01),
        (" local.lr = 0.01 ", ["local", "lr"], 0.01),
        ("seed=3", ["seed"], 3),
        ("data.name=cifar-10", ["data", "name"], "cifar-10"),
        ('data.name="3"', ["data", "name"], "3"),
        ("evaluate.targets=[0.5, 0.6]", ["evaluate", "targets"], [0.5, 0.6]),
        ("timing_only=true", ["timing_only"], True),
        ("model.hidden=5", ["model"], {"name": "mlp", "hidden": 5}),
        ("name=a=b", ["name"], "a=b"),
    ],
)
def test_an_override_sets_its_key(text: str, path: list[str], value: Any) -> None:
    table: Any = override({"model": "mlp", "local": {"epochs": 7}}, [text])
    assert table["local"]["epochs"] == 7
    for key in path:
        table = table[key]
    assert table == value


def test_the_last_override_counts() -> None:
    assert override({}, ["local.lr=1", "local.lr=2"]) == {"local": {"lr": 2}}


def test_another_method_drops_the_settings_of_the_one_it_replaces() -> None:
    table = {"algorithm": {"name": "fedasync", "alpha": 0.3}}
    assert override(table, ["algorithm.name=fedavg"]) == {"algorithm": {"name": "fedavg"}}
    assert override(table, ["algorithm=fedavg"]) == {"algorithm": {"name": "fedavg"}}
    assert override(table, ["algorithm.name=fedasync"]) == table
    both = override(table, ["algorithm.name=fedasync", "algorithm.alpha=0.9"])
    assert both == {"algorithm": {"name": "fedasync", "alpha": 0.9}}


def test_other_data_drop_what_stands_in_for_the_old_ones() -> None:
    table = {"data": {"name": "fashion-mnist", "fallback": "embedded", "alpha": 0.3}}
    assert override(table, ["data.name=cifar-10"]) == {"data": {"name": "cifar-10", "alpha": 0.3}}
    assert override(table, ["data.name=fashion-mnist"]) == table
    both = override(table, ["data.fallback=embedded", "data.name=cifar-10"])
    assert both["data"]["fallback"] == "embedded"  # asked for: `load` says that it does not fit


@pytest.mark.parametrize("key", ["data.dir", "data.fallback", "data.columns.user", "data.glove", "fleet.trace"])
def test_none_can_be_written_for_every_key_that_may_be_empty(key: str) -> None:
    changed = parse(override(settings(), [f"{key}=none"]))
    assert changed == parse(settings())


def test_none_is_kept_where_it_is_not_what_the_method_starts_with() -> None:
    config = load("quickstart", ["algorithm.name=fedasmu", "algorithm.max_staleness=none"])
    assert config.algorithm.max_staleness is None
    assert again(config).algorithm.max_staleness is None


def test_none_stays_a_word_where_it_is_one_of_several() -> None:
    assert load("quickstart", ["data.augment=none"]).data.augment == "none"


def test_changes_may_be_a_mapping() -> None:
    values = {"local.lr": 0.5, "fleet.preset": ["het110"], "data.dir": None, "stop.time": float("inf"), "name": "x"}
    config = load("quickstart", values)
    assert (config.local.lr, config.fleet.preset, config.data.dir, config.name) == (0.5, ["het110"], None, "x")


def test_a_method_may_be_a_class_or_an_object() -> None:
    assert parse(settings(algorithm=FedAvg)).algorithm == FedAvg()
    assert parse(settings(algorithm=FedAsync(alpha=0.3))).algorithm == FedAsync(alpha=0.3)

    class Mine(FedAvg):
        """Mine."""

    assert parse(settings(algorithm=Mine())).algorithm.name == f"{__name__}:{Mine.__qualname__}"
    with pytest.raises(UserError, match=r"algorithm\.sigma.*required"):
        parse(settings(algorithm=Needy))


@pytest.mark.parametrize(("key", "value"), [("mode", "c"), ("modes", ["a", "c"])])
def test_a_pattern_that_a_method_does_not_describe_is_told_as_it_is(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf'algorithm\.{key}.* = "c": string should match pattern'):
        parse(settings(algorithm={"name": f"{__name__}:Patterned", key: value}))


Mode = Annotated[str, Field(pattern="^[ab]$")]


class Patterned(FedAvg):
    """A method whose settings are patterns without a word about them."""

    mode: Mode = "a"
    modes: list[Mode] = Field([])


class Needy(FedAvg):
    """A method with a setting that has no default."""

    sigma: float


def test_overrides_leave_the_table_alone() -> None:
    table = {"local": {"lr": 1.0}}
    override(table, ["local.lr=2"])
    assert table == {"local": {"lr": 1.0}}


def test_a_key_is_not_a_section() -> None:
    with pytest.raises(UserError, match="seed is not a section"):
        override({"seed": 3}, ["seed.x=1"])


def test_settings_are_frozen() -> None:
    config = parse(settings())
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        config.local.lr = 3  # type: ignore[misc]
