"""An act that fails half-way: nothing that is in memory then is kept, or told to a device."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedasmu import Result
from fedasmu.errors import Refused
from fedasmu.network import serving
from fedasmu.network.acts import Changed, Rebuild
from fedasmu.network.evaluator import Evaluator
from fedasmu.network.folder import Folder
from fedasmu.network.keeping import Keeping
from fedasmu.network.replay import replay
from fedasmu.network.service import Service
from fedasmu.server.desk import Desk
from fedasmu.storage.record import Record
from fedasmu.storage.shelf import Shelf
from helpers.federation import Federation
from helpers.place import Place, started
from helpers.served import eventually

CA2FL: dict[str, Any] = {
    "algorithm": {"name": "ca2fl"}
}  # whose server takes its buffer apart before it looks at the shelf
MACHINE, METHOD = OSError(errno.EMFILE, "Too many open files"), ZeroDivisionError("a bug")


def delivered(place: Place, count: int) -> int:
    """One after the other, until so many uploads are there or one of them fails. How many there are."""
    for number in range(count):
        at = 10.0 * number
        device, task = next(iter(started(place, at, range(number % 10, number % 10 + 1)).items()))
        try:
            place.coordinator.deliver(device, task, place.report(task, device), {}, at + 1.0)
        except Rebuild:
            return number + 1
    return count


@pytest.mark.parametrize("error", [MACHINE, METHOD], ids=["machine", "method"])
def test_a_checkpoint_that_is_due_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The checkpoint had been begun before, and was waiting for the disk."""
    place, held = Place(tmp_path, **CA2FL), threading.Event()

    async def scene() -> int:
        place.keeping._saved -= 1e10
        place.keeping._thread.submit(held.wait, 60.0)
        place.keeping.look()
        await asyncio.sleep(0)
        failed = delivered(place, 40)
        held.set()
        await asyncio.wait_for(place.keeping.settled(), 60.0)
        return failed

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "get", Mock(side_effect=error))
        failed = asyncio.run(scene())
        place.save()  # nor does a last one
    assert failed < 40
    place.crash()
    again = Place(tmp_path, **CA2FL)
    assert again.recovered > 0
    if error is MACHINE:
        (tmp_path / "right").mkdir()
        right = Place(tmp_path / "right", **CA2FL)
        delivered(right, failed)
        assert again.fingerprint == right.fingerprint
    else:
        assert again.coordinator.server.counters.lost == 1


@pytest.mark.parametrize("error", [MACHINE, METHOD], ids=["machine", "method"])
def test_an_upload_that_fails_while_the_server_stops_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    federation = Federation(tmp_path, stop={"uploads": 30}, network={"keep": "all"}, **CA2FL)
    waiting, original, get = threading.Event(), Service._upload, Shelf.get

    async def slow(self: Service, *given: Any) -> bytearray:
        data = await original(self, *given)
        if self.coordinator.server.counters.received == 9:  # with the tenth the server aggregates
            waiting.set()
            while not self.coordinator.draining:
                await asyncio.sleep(0.01)
        return data

    def broken(self: Shelf, key: object) -> Any:
        if waiting.is_set():
            raise error
        return get(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(Service, "_upload", slow)
        patch.setattr(Shelf, "get", broken)
        federation.start()
        federation.work(federation.device(0))
        assert waiting.wait(60)
        federation.stop()
    federation.start()
    federation.wait()
    assert Result(federation.path).summary["uploads"] >= 30
    assert replay(federation.world, Folder(federation.path)).differing == []


def test_devices_are_told_nothing_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is gone from memory while a checkpoint is still being written: its device must not give it up."""
    federation, said = Federation(tmp_path, stop={"uploads": 12}, **CA2FL), list[str]()

    async def slow(self: Keeping) -> None:
        await asyncio.sleep(4)  # a device asks again after a second

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "get", Mock(side_effect=MACHINE))
        patch.setattr(Keeping, "settled", slow)
        federation.start()
        federation.work(federation.device(0, say=said.append))
        federation.failure()
    federation.start()
    federation.wait()
    assert not [line for line in said if "given up" in line]
    assert Result(federation.path).summary["lost"] == 0


def test_a_run_whose_end_fails_says_so_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no upload that could be left out."""
    federation = Federation(tmp_path, stop={"uploads": 4}, algorithm={"name": "fedasync"}, evaluate={"every": 3})
    work = Evaluator._work

    def last_fails(self: Evaluator, job: Any) -> Any:
        if federation.serving.coordinator.server.counters.received >= 4:
            self._perform = Mock(side_effect=METHOD)
        return work(self, job)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_work", last_fails)
        federation.start()
        federation.work(federation.device(0))
        assert str(METHOD) in str(federation.failure())
    federation.start()
    federation.wait()
    assert Result(federation.path).summary["uploads"] == 4


def test_a_method_that_fails_again_and_again_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device would train for nothing, for ever."""
    monkeypatch.setattr(serving, "FAILURES", 2)
    federation = Federation(tmp_path, stop={"uploads": 3}, algorithm={"name": "fedasync"})
    with monkeypatch.context() as patch:
        patch.setattr(Desk, "receive", Mock(side_effect=METHOD))
        federation.start()
        federation.work(federation.device(0))
        error = federation.failure()
    assert isinstance(error, Refused)
    assert str(error).startswith("the method failed 2 times in a row; see ")
    assert str(error).endswith(f"when it is mended go on with: fedasmu serve --resume {federation.path}")
    assert "a bug" in "".join(path.read_text() for path in (federation.path / "failures").iterdir())
    federation.start()
    federation.wait()
    assert Result(federation.path).summary["uploads"] == 3


def test_what_was_acknowledged_is_not_left_out_by_a_method_that_has_a_bug_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, **CA2FL)
    delivered(place, 4)
    acts, before = place.ledger.next, place.fingerprint
    place.crash()
    with monkeypatch.context() as patch:
        patch.setattr(Desk, "receive", Mock(side_effect=METHOD))
        with pytest.raises(Changed, match="a bug"):
            Place(tmp_path, **CA2FL)
    again = Place(tmp_path, **CA2FL)
    assert (again.ledger.next, again.fingerprint) == (acts, before)


def test_a_disk_that_stays_full_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stay so for a night, and a log is on a disk too."""
    monkeypatch.setattr(serving, "ROOM", 0.01)
    full, said = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")), list[str]()
    federation = Federation(tmp_path, stop={"uploads": 3}, algorithm={"name": "fedasync"})
    with monkeypatch.context() as patch:
        patch.setattr(Record, "flush", full)
        federation.start()
        federation.serving.say = said.append
        assert eventually(lambda: full.call_count >= 5)
    federation.work(federation.device(0))
    federation.wait()
    assert said.count("the disk is full: waiting for room") <= 1
    assert Result(federation.path).summary["uploads"] == 3
