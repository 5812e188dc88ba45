"""A setting that is given and changes nothing is named before the run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedasmu import Experiment
from fedasmu.run.remarks import remarks
from fedasmu.settings import recipe
from helpers.blobs import blobs, settings

IDLE = {
    "data.alpha=0.1 data.split=iid": "data.alpha = 0.1 is not used: data.split = iid has no such number",
    "data.min_samples=5 data.split=shards": "data.min_samples = 5 is not used: data.split = shards has no such number",
    "data.shards_per_device=3": "data.shards_per_device = 3 is not used: data.split = dirichlet has no shards",
    "fleet.preset=paper fleet.slowest_over_fastest=440": (
        "fleet.slowest_over_fastest = 440.0 is not used: with fleet.spread = log-normal it is fleet.sigma that tells "
        "devices apart"
    ),
    "fleet.sigma=2": "fleet.sigma = 2.0 is not used: fleet.spread = uniform has no such number",
    "fleet.preset=het110 fleet.profiles=p.csv": (
        "fleet.spread = log-uniform and fleet.slowest_over_fastest = 110.0 are not used: the devices are those of "
        "fleet.profiles"
    ),
    "fleet.link_spread=[1,3] fleet.profiles=p.csv": (
        "fleet.link_spread = [1.0, 3.0] is not used: the devices are those of fleet.profiles"
    ),
    "fleet.preset=unreliable fleet.trace=t.csv": (
        "fleet.availability = 0.7 is not used: fleet.trace says when each device is there"
    ),
    "fleet.cycle=60": "fleet.cycle = 60.0 is not used: with fleet.availability = 1 devices are always there",
    "local.eps=1e-3": "local.eps = 0.001 is not used: local.optimiser = sgd has no such number",
    "evaluate.full_every=3": (
        "evaluate.full_every = 3 is not used: without evaluate.subset all evaluations are on all test examples"
    ),
    "guard.window=9": "guard.window = 9 is not used: without guard.clip and guard.refuse there is no guard",
    "attack.factor=3": "attack.factor = 3.0 is not used: attack.share = 0, so that no device lies",
    "attack.factor=3 attack.share=0.1": "attack.factor = 3.0 is not used: a sign-flip has its own size",
    "data.per_device=60": "data.per_device = 60 is not used: it is for timing_only = true",
}
USED = [
    "data.alpha=0.1 data.split=equal-dirichlet",
    "data.shards_per_device=3 data.split=shards",
    "fleet.preset=het440",
    "fleet.preset=paper fleet.sigma=2",
    "fleet.profiles=p.csv fleet.trace=t.csv",
    "fleet.preset=unreliable fleet.cycle=60",
    "local.optimiser=adam local.betas=[0.5,0.9]",
    "evaluate.subset=100 evaluate.full_every=3",
    "guard.clip=2 guard.window=9",
    "attack.share=0.1 attack.kind=scale attack.factor=3",
    "timing_only=true data.per_device=60",
]


def said(changes: str) -> list[str]:
    return remarks(recipe.parse(recipe.override({"algorithm": "fedasync"}, changes.split())))


@pytest.mark.parametrize("changes", IDLE)
def test_what_changes_nothing_is_said(changes: str) -> None:
    assert said(changes) == [IDLE[changes]]


@pytest.mark.parametrize("changes", USED)
def test_what_is_used_is_not(changes: str) -> None:
    assert said(changes) == []


def test_no_recipe_of_ours_sets_what_it_does_not_use() -> None:
    for path in sorted((Path(recipe.__file__).parents[1] / "recipes").glob("*.toml")):
        assert not [line for line in remarks(recipe.load(path)) if "not used" in line], path.name


def test_data_given_in_python_come_divided_too(tmp_path: Path) -> None:
    lines: list[str] = []
    table: dict[str, Any] = settings(stop={"uploads": 1}, data={"split": "iid", "alpha": 0.1, "dir": "/there"})
    Experiment(table, model=lambda: nn.Linear(20, 2), data=blobs()).run(tmp_path / "run", say=lines.append)
    assert (
        "data.split = iid and data.alpha = 0.1 are not used: data of your own come divided over their devices" in lines
    )
    assert "data.dir = /there is not used: data of your own are read by code of your own" in lines
