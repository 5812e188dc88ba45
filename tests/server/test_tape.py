"""The desk is a function of the calls made to it: a tape of them, played into a fresh one, leaves the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu.algorithms import NAMES
from fedasmu.pools import Inline
from fedasmu.run.build import World, build
from fedasmu.server.desk import Desk
from fedasmu.settings.recipe import parse
from fedasmu.simulation.build import fleet_of, simulator
from fedasmu.storage.record import Record
from helpers.blobs import blobs, network, of_method, settings

RESTLESS = {"dropout": 0.15, "availability": 0.6, "cycle": 40.0, "jitter": 0.3}
CALLS = ("begin", "tick", "fetch", "sending", "receive", "lose", "flush")
Tape = list[tuple[str, tuple[Any, ...]]]


def recorded(desk: Desk) -> Tape:
    """The calls made to the desk from now on. A tick is kept as the start of the devices that it drew."""
    tape: Tape = []

    def listening(name: str, call: Any) -> Any:
        def listened(*given: Any) -> Any:
            result = call(*given)
            tape.append(("start", (given[0], [task.device for task in result])) if name == "tick" else (name, given))
            return result

        return listened

    for name in CALLS:
        setattr(desk, name, listening(name, getattr(desk, name)))
    return tape


def a_pool(world: World) -> Inline:
    assert world.trainer is not None
    return Inline(world.trainer.perform)


def written(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in ("events.jsonl", "metrics.csv")]


@pytest.mark.parametrize("name", NAMES)
def test_a_tape_of_the_calls_gives_the_same_run(name: str, tmp_path: Path) -> None:
    world = build(parse(settings(**of_method(name), fleet=RESTLESS, stop={"uploads": 40})), network, blobs())
    for directory in ("simulated", "played"):
        (tmp_path / directory).mkdir()
    record, again = Record(tmp_path / "simulated"), Record(tmp_path / "played")
    driver = simulator(world, fleet_of(world), a_pool(world), record)
    tape = recorded(driver.desk)
    driver.begin()
    while driver.ended is None:
        driver.step()
    driver.finish()

    played = world.desk(world.federation(world.roster(), again), a_pool(world), again)
    for call, given in tape:
        getattr(played, call)(*given)
    record.close()
    again.close()
    assert {call for call, _ in tape} >= {"start", "receive", "lose"}
    assert torch.equal(played.server.model.vector, driver.desk.server.model.vector)
    assert played.server.model.version == driver.desk.server.model.version > 0
    assert played.server.counters == driver.desk.server.counters
    assert played.meter.tally == driver.desk.meter.tally
    assert written(tmp_path / "played") == written(tmp_path / "simulated")
