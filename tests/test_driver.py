"""The driver of docs/explanation/driver.md is a whole one: it trains every kind of method."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedasmu import Result
from fedasmu.run.build import World, build
from fedasmu.server.desk import Desk
from fedasmu.settings.recipe import parse
from helpers.blobs import blobs, network, of_method, settings, softmax

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "driver.md"


def one_by_one(world: World, directory: Path) -> Desk:
    """As the page has it."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    page: dict[str, Any] = {}
    exec(code, page)
    desk: Desk = page["one_by_one"](world, directory)
    return desk


@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "fedbuff", "port", "moon", "asyncdrop"])
def test_the_smallest_driver_runs_a_method(name: str, tmp_path: Path) -> None:
    world = build(parse(settings(**of_method(name))), network, blobs())
    desk = one_by_one(world, tmp_path)
    assert desk.server.counters.received >= 60
    result = Result(tmp_path)
    assert result.curve["accuracy"][-1] > 0.9
    assert len([event for event in result.events if event["event"] == "upload"]) == desk.server.counters.received


def test_its_devices_measure_where_the_recipe_says_so(tmp_path: Path) -> None:
    world = build(parse(settings(evaluate={"on_devices": 0.2})), softmax, blobs())
    one_by_one(world, tmp_path)
    assert Result(tmp_path).curve["device_accuracy"][-1] > 0.8
