"""The coordinator: plain calls with made-up times. Who gets a task, for how long, and what a crash leaves of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu.network import wire
from fedasmu.network.acts import Rebuild
from fedasmu.network.coordinator import DELIVERIES, Gone
from fedasmu.network.ledger import DiskFull
from fedasmu.network.segment import Act
from fedasmu.protocol import Report
from helpers.place import LEASE, OFFER, Place, started


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_devices_start_where_there_is_room_and_get_their_task_again(place: Place) -> None:
    tasks = started(place)
    assert len(tasks) == 3
    device, task = next(iter(tasks.items()))
    again = place.coordinator.arrive(device, 1.0)
    assert again is not None
    assert again.id == task
    assert place.coordinator.advance(1.0) == [], "three are in flight, and no more may be"


def test_who_is_not_there_is_not_started(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.arrive(4, 0.0)
    coordinator.arrive(7, 0.0)
    coordinator.leave(4)
    assert [task.device for task in coordinator.advance(0.0)] == [7]


def test_a_trigger_that_finds_no_room_passes(place: Place) -> None:
    """As in a simulation: a place that becomes free between two triggers waits for the next."""
    coordinator = place.coordinator
    (device, task), *_ = started(place, 0.3).items()
    assert coordinator.advance(1.1) == []
    coordinator.deliver(device, task, place.report(task, device), {}, 1.2)
    assert coordinator.advance(1.9) == []
    assert coordinator.due() == 2.0
    assert len(coordinator.advance(2.0)) == 1


def test_an_upload_is_told_the_same_however_often_it_comes(place: Place) -> None:
    device, task = next(iter(started(place).items()))
    body = place.report(task, device)
    first = place.coordinator.deliver(device, task, body, {}, 2.0)
    assert first.verdict == "accepted"
    before = place.fingerprint, place.ledger.next
    assert place.coordinator.deliver(device, task, b"anything", {}, 3.0) == first
    assert (place.fingerprint, place.ledger.next) == before


def test_a_task_is_its_devices_and_nobody_elses(place: Place) -> None:
    tasks = started(place)
    device, task = next(iter(tasks.items()))
    other = next(one for one in tasks if one != device)
    before = place.fingerprint
    for call in (
        lambda who, what: place.coordinator.fresh(who, what, 0, 1.0),
        lambda who, what: place.coordinator.beat(who, what, 1.0),
        lambda who, what: place.coordinator.outcome(who, what),
        lambda who, what: place.coordinator.deliver(who, what, b"", {}, 1.0),
    ):
        for who, what in ((other, task), (9999, task), (device, 9999), (device, -1)):
            with pytest.raises(Gone):
                call(who, what)
    assert place.fingerprint == before


def test_without_a_sign_of_life_a_task_is_lost_with_its_offer_and_then_with_its_lease(place: Place) -> None:
    coordinator = place.coordinator
    silent, living, _ = started(place, devices=range(3)).items()
    coordinator.beat(*living, 10.0)
    coordinator.advance(OFFER - 0.1)
    assert silent[1] in coordinator.server.ledger
    coordinator.advance(OFFER)
    assert silent[1] not in coordinator.server.ledger
    assert living[1] in coordinator.server.ledger
    coordinator.advance(10.0 + LEASE)
    assert not coordinator.server.ledger, "no place is held longer than its lease"
    assert coordinator.server.counters.lost == 3
    with pytest.raises(Gone):
        coordinator.deliver(*living, b"", {}, 90.0)


def test_what_a_full_disk_has_no_room_for_is_done_when_it_has(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(act: Act) -> int:
        raise DiskFull

    coordinator = place.coordinator
    coordinator.arrive(4, 0.0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(place.ledger, "append", full)
        with pytest.raises(DiskFull):
            coordinator.advance(0.0)
    assert [task.device for task in coordinator.advance(1.0)] == [4], "it has not hung up"
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(place.ledger, "append", full)
        with pytest.raises(DiskFull):
            coordinator.advance(100.0)
    coordinator.advance(100.0)
    assert not coordinator.server.ledger, "it is late, and nobody else's lease ends later"


def test_a_request_for_a_fresh_model_is_answered_once_and_repeated_for_nothing(place: Place) -> None:
    coordinator = place.coordinator
    first, second, _ = started(place).items()
    coordinator.deliver(*first, place.report(first[1], first[0]), {}, 1.0)
    fresh = coordinator.fresh(*second, 0, 2.0)
    assert fresh is not None
    assert fresh.version == 1
    acts = place.ledger.next
    assert coordinator.fresh(*second, 0, 3.0) is fresh
    assert place.ledger.next == acts
    assert coordinator.fresh(*second, 1, 3.0) is None, "a second request gets nothing"
    with pytest.raises(Gone):
        coordinator.fresh(*second, 7, 3.0)


def test_who_asks_for_models_without_end_loses_the_task(place: Place) -> None:
    device, task = next(iter(started(place).items()))
    for _ in range(DELIVERIES):
        place.coordinator.arrive(device, 1.0)
    with pytest.raises(Gone):
        place.coordinator.arrive(device, 1.0)
    assert task not in place.coordinator.server.ledger


def test_a_device_that_fails_again_and_again_rests(place: Place) -> None:
    coordinator, now = place.coordinator, 0.0
    for _ in range(3):
        coordinator.arrive(5, now)
        (task,) = coordinator.advance(now)
        coordinator.lose(task.id, now)
        now += 2.0
    coordinator.arrive(5, now)
    assert coordinator.advance(now) == []
    assert coordinator.leases.rests(5, now) > 0
    coordinator.present.clear()
    coordinator.arrive(5, now)
    assert coordinator.due() > now + 1.0, "nobody is woken for one who rests"
    assert [task.device for task in coordinator.advance(now + 700.0)] == [5]


def test_a_round_waits_for_its_cohort_and_starts_with_who_is_there(tmp_path: Path) -> None:
    place = Place(tmp_path, algorithm={"name": "fedavg"}, network={"gather": 20.0})
    coordinator = place.coordinator
    coordinator.arrive(1, 0.0)
    assert coordinator.advance(0.0) == []
    assert coordinator.due() == 20.0
    assert [task.device for task in coordinator.advance(20.0)] == [1]


def test_a_round_ends_without_those_whose_time_is_up(tmp_path: Path) -> None:
    place = Place(tmp_path, algorithm={"name": "fedavg"})
    one, two, three = started(place).items()
    for device, task in (one, two):
        place.coordinator.deliver(device, task, place.report(task, device), {}, 5.0)
    assert place.coordinator.server.model.version == 0
    place.coordinator.advance(OFFER)
    assert place.coordinator.server.model.version == 1
    assert three[1] not in place.coordinator.server.ledger


def test_a_deadline_for_rounds_follows_what_tasks_took(tmp_path: Path) -> None:
    leases = Place(tmp_path, algorithm={"name": "fedavg"}).coordinator.leases
    for number, duration in enumerate((40.0, 42.0, 44.0, 46.0)):
        leases.grant(number, number, 0.0)
        leases.end(number, duration, good=True)
    assert leases.deadline == float("inf")
    leases.grant(9, 9, 0.0)
    leases.end(9, 48.0, good=True)
    assert leases.deadline == 44.0 + 4 * 2.0


def test_a_refused_upload_counts_against_a_device_and_not_against_the_model(place: Place) -> None:
    device, task = next(iter(started(place).items()))
    vector = torch.full((len(place.coordinator.server.model.vector),), torch.nan)
    body = wire.report_frame(Report(vector, 1, 0.5), {})
    assert place.coordinator.deliver(device, task, body, {}, 1.0).verdict == "refused"
    assert place.coordinator.server.model.version == 0


def test_a_method_that_raises_costs_the_upload_and_not_the_run(place: Place, tmp_path: Path) -> None:
    tasks = started(place)
    device, task = next(iter(tasks.items()))
    body = place.report(task, device)
    aggregate = place.coordinator.server.aggregator.aggregate

    def broken(current: Any, uploads: Any) -> Any:
        if uploads[0].task == task:
            raise ZeroDivisionError("as a method may")
        return aggregate(current, uploads)

    place.coordinator.server.aggregator.aggregate = broken  # type: ignore[method-assign]
    with pytest.raises(Rebuild, match="ZeroDivisionError"):
        place.coordinator.deliver(device, task, body, {}, 1.0)
    place.crash()
    again = Place(tmp_path).coordinator
    assert task not in again.server.ledger
    assert again.server.counters.received == 0
    assert again.server.counters.lost == 1
    assert len(again.server.ledger) == len(tasks) - 1


@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "ca2fl"])
def test_a_crash_at_any_moment_leaves_the_same_run(tmp_path: Path, name: str) -> None:
    """A long random tale of polls, requests, uploads, losses, crashes and checkpoints, against its own ledger."""
    chance, now = random.Random(3), 0.0
    place = Place(tmp_path, algorithm={"name": name}, stop={"uploads": 10_000})
    told: dict[int, Any] = {}
    for _ in range(250):
        now += chance.random()
        coordinator, device = place.coordinator, chance.randrange(10)
        if coordinator.acts.tasks and chance.random() < 0.6:
            device = chance.choice(list(coordinator.acts.tasks))
        task = coordinator.acts.tasks.get(device)
        deed = chance.random()
        if task is None or deed < 0.3:
            if task is None:
                coordinator.present[device] = ""
            else:
                coordinator.beat(device, task, now)
        elif deed < 0.5:
            coordinator.fresh(device, task, chance.randint(0, coordinator.acts.asks.get(task, 0)), now)
        elif deed < 0.9:
            told[task] = device, coordinator.deliver(device, task, place.report(task, device), {}, now)
        else:
            coordinator.lose(task, now)
        coordinator.advance(now)
        if chance.random() < 0.03:
            place.save()
        if chance.random() < 0.03:
            before = place.fingerprint
            place.crash()
            place = Place(tmp_path, algorithm={"name": name}, stop={"uploads": 10_000})
            assert place.fingerprint == before
            for number, (who, outcome) in told.items():
                known = place.coordinator.acts.outcomes[who]
                assert known.task >= number, "an acknowledged upload is known"
                assert known.task > number or known == outcome
    assert len(told) > 20
    assert place.coordinator.server.counters.received == len(told)


def test_the_files_after_a_crash_are_those_without_one(tmp_path: Path) -> None:
    def tale(path: Path, crashes: bool) -> tuple[bytes, bytes]:
        path.mkdir()
        place = Place(path)
        for step in range(40):
            for device, task in list(started(place, float(step)).items()):
                place.coordinator.deliver(device, task, place.report(task, device), {}, step + 0.5)
            if crashes and step % 7 == 3:
                if step % 2:
                    place.save()
                place.crash()
                place = Place(path)
        place.coordinator.end(50.0)
        place.crash()
        return (path / "events.jsonl").read_bytes(), (path / "metrics.csv").read_bytes()

    assert tale(tmp_path / "whole", crashes=False) == tale(tmp_path / "broken", crashes=True)


def test_the_wall_clock_decides_nothing() -> None:
    """Acts, leases and the coordinator are told the time; nothing in them looks at a clock."""
    import ast

    import fedasmu.network as package

    for name in ("acts", "coordinator", "leases"):
        tree = ast.parse((Path(package.__file__).parent / f"{name}.py").read_text())
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not modules & {"time", "socket", "asyncio", "threading", "datetime", "random"}
