"""Checkpoints of a served run: frozen at one moment, written while the run goes on, and short tales for a recovery."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fedasmu.encoding.codec import pack
from fedasmu.network import keeping
from fedasmu.network.acts import Rebuild
from fedasmu.storage import checkpoint
from fedasmu.storage.shelf import Shelf
from helpers.place import Place, started


def uploaded(place: Place, rounds: int, now: float = 0.0) -> None:
    """So many times, three devices take a task and deliver it."""
    for number in range(rounds):
        at = now + 10.0 * number
        for device, task in started(place, at).items():
            place.coordinator.deliver(device, task, place.report(task, device), {}, at + 1.0)


def reopened(place: Place) -> Place:
    place.crash()
    return Place(place.path, **place.changes)


@pytest.mark.parametrize("name", ["fedasmu", "fedbuff", "fadas", "fedfa", "ca2fl", "feddyn", "asofed"])
def test_what_happens_while_a_checkpoint_is_written_is_not_in_it_and_follows_it(tmp_path: Path, name: str) -> None:
    """Methods keep vectors that they write into: the thread must not see them change."""
    place = Place(tmp_path, algorithm={"name": name})
    uploaded(place, 2)
    frozen = place.keeping._frozen()
    uploaded(place, 2, now=100.0)
    started(place, 200.0)
    place.keeping._put(*frozen)
    text, tensors = pack(place.coordinator.server.state())
    again = reopened(place)
    assert again.recovered == place.ledger.next - frozen[0] > 0
    assert again.fingerprint == place.fingerprint
    found, others = pack(again.coordinator.server.state())
    assert found == text
    assert all(torch.equal(others[name], tensor) for name, tensor in tensors.items())


def test_acts_go_on_while_the_thread_writes(tmp_path: Path) -> None:
    """The thread that writes is held up, as by a slow disk: the loop is not."""
    place = Place(tmp_path)
    uploaded(place, 1)
    held = threading.Event()

    async def scene() -> None:
        place.keeping._saved -= 1e10  # one is due
        place.keeping._thread.submit(held.wait, 60.0)
        place.keeping.look()
        await asyncio.sleep(0)
        uploaded(place, 1, now=50.0)
        await asyncio.wait_for(place.ledger.durable(), 60.0)
        assert not (tmp_path / "checkpoint").exists()
        held.set()
        await asyncio.wait_for(place.keeping.settled(), 60.0)
        place.keeping.look()
        uploaded(place, 1, now=100.0)
        await asyncio.wait_for(place.ledger.durable(), 60.0)

    asyncio.run(scene())
    again = reopened(place)
    assert 0 < again.recovered < place.ledger.next
    assert again.fingerprint == place.fingerprint


def test_a_server_killed_again_and_again_has_no_longer_and_longer_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process lives as long as the pause between two checkpoints; a long ledger makes one due all the same."""
    place = Place(tmp_path)
    uploaded(place, 3)
    monkeypatch.setattr(keeping, "TAIL", place.ledger.size)
    again = reopened(place)
    assert again.ledger.size == place.ledger.size
    again.coordinator.desk.settle()  # an evaluation under way would be waited for
    assert again.keeping._due()
    again.save()
    assert not again.keeping._due()
    assert reopened(again).recovered == 0


def test_a_failed_checkpoint_is_told_and_the_ledger_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    uploaded(place, 1)
    (tmp_path / "checkpoint").write_text("in the way")

    async def scene() -> None:
        place.keeping._saved -= 1e10
        place.keeping.look()
        await asyncio.wait_for(place.keeping.settled(), 60.0)
        uploaded(place, 1, now=50.0)
        with pytest.raises(OSError, match="checkpoint"):
            place.keeping.look()

    asyncio.run(scene())
    (tmp_path / "checkpoint").unlink()
    assert reopened(place).fingerprint == place.fingerprint


def test_tensors_are_frozen_unless_they_last(tmp_path: Path) -> None:
    changing, lasting = torch.zeros(3), torch.zeros(3)
    state = checkpoint.frozen({"changing": changing, "lasting": lasting, "again": changing}, [lasting])
    changing += 1.0
    checkpoint.add(state, tmp_path)
    found = checkpoint.load(tmp_path, print)
    assert found is not None
    assert torch.equal(found["changing"], torch.zeros(3))
    assert torch.equal(found["again"], torch.zeros(3))
    assert state.tensors.keys() == {"0", "1"}
    assert any(tensor is lasting for tensor in state.tensors.values()), "a model in flight is not copied"


def full(*given: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_checkpoints_that_find_no_room_take_nothing_from_the_one_that_is_there(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, algorithm={"name": "ca2fl"}, transfer={"precision": precision})
    uploaded(place, 4)
    place.save()

    async def scene() -> None:
        for number in range(1, 5):
            uploaded(place, 2, now=100.0 * number)
            place.keeping._saved -= 1e10
            place.keeping.look()
            await place.keeping.settled()
            place.keeping.look()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "add", full)
        asyncio.run(scene())
    assert reopened(place).fingerprint == place.fingerprint


def test_trouble_of_the_machine_in_a_recovery_costs_no_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, algorithm={"name": "ca2fl"})
    uploaded(place, 4)
    acts = place.ledger.next
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "get", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(Rebuild, match="Too many open files"):
            reopened(place)
    again = Place(tmp_path, **place.changes)
    assert again.ledger.next == acts, "nothing was added: no act is to be skipped"
    assert again.fingerprint == place.fingerprint


def test_what_makes_the_method_raise_is_skipped_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, algorithm={"name": "ca2fl"})
    device, task = next(iter(started(place).items()))
    monkeypatch.setattr(place.coordinator.desk, "receive", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(Rebuild):
        place.coordinator.deliver(device, task, place.report(task, device), {}, 1.0)
    assert reopened(place).coordinator.server.counters.lost == 1


def test_a_damaged_shelf_is_passed_over_with_its_checkpoint(tmp_path: Path) -> None:
    place = Place(tmp_path, algorithm={"name": "ca2fl"})
    shelf = tmp_path / "shelves" / "server"
    uploaded(place, 4)
    place.save()
    older = set(shelf.iterdir())
    uploaded(place, 3, now=100.0)
    place.save()
    newer = set(shelf.iterdir()) - older
    uploaded(place, 2, now=200.0)
    for path in newer:
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
    assert reopened(place).fingerprint == place.fingerprint


def test_a_shelf_does_not_grow_with_the_lives_of_its_server(tmp_path: Path) -> None:
    counts = []
    place = Place(tmp_path, algorithm={"name": "area"}, stop={"uploads": 10_000})
    for life in range(4):
        for step in range(3):
            uploaded(place, 4, now=1000.0 * life + 100.0 * step)
            place.save()
        counts.append(len(list((tmp_path / "shelves" / "server").iterdir())))
        place = reopened(place)
    assert max(counts) <= 2 * 10 + 3, "two checkpoints of ten devices"
