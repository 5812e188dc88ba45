"""A device that stays when a run is over, and the next run that begins with the members of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedasmu import Result
from fedasmu.errors import UserError
from fedasmu.network import device as devices
from fedasmu.network.folder import Folder
from helpers.federation import Federation
from helpers.said import said

ONE: dict[str, Any] = {"pacing": {"period": 0.02, "max_in_flight": 1, "count": 1}, "network": {"gather": 0.0}}


def second(first: Federation, folder: Path, seats: int) -> Folder:
    """The folder of a run that begins with the first one's members, at its address."""
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "config.toml").write_text(first.world.config.toml())
    return Folder.make(folder / "run", seats, "127.0.0.1", first.folder.port, members=first.folder)


def test_a_device_that_stays_works_in_the_next_run_without_an_invite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "NEXT_RUN", 0.1)
    first = Federation(tmp_path / "first", stop={"uploads": 3}, **ONE)
    said: list[str] = []
    device = first.device(4, say=said.append)
    first.start()
    working = first._thread(lambda: device.run(stay=True))
    first._server.join(120)
    assert first.ended
    assert working.is_alive()
    second(first, tmp_path / "second", 10)
    again = Federation(tmp_path / "second", stop={"uploads": 5}, **ONE)
    again.start()
    again._server.join(120)
    assert again.ended
    device.stop()
    first.wait()
    for federation, uploads in ((first, 3), (again, 5)):
        assert Result(federation.path).summary["uploads"] == uploads
    assert device.tasks == 8
    assert said.count("the run is over") == 2, "once for each run, however often it looks"
    assert [seat.seat for seat in again.folder.register.all()] == [4]
    assert len(list((tmp_path / "first" / "devices" / "4" / "runs").iterdir())) == 2, "each run has a memory of its own"


def test_members_keep_their_seats_invites_and_revocations(tmp_path: Path) -> None:
    first = Federation(tmp_path / "first")
    folder = first.folder
    key = bytes([5]) * 32
    folder.register.enrol(folder.invite(seat=7).id, key, "kitchen", 10)
    folder.register.revoke("kitchen")
    invite = folder.invite(name="cellar")
    later = second(first, tmp_path / "second", 8)
    (seat,) = later.register.all()
    assert (seat.seat, seat.key, seat.revoked is None) == (7, key, False)
    assert later.register.find_invite(invite.id) is not None
    assert (later.pins(), later.run != folder.run) == (folder.pins(), True)
    assert (later.path / "register.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match=r"there is a device in seat 7, but fleet\.devices = 7"):
        second(first, tmp_path / "third", 7)


def test_mistakes_with_members(tmp_path: Path) -> None:
    first = Federation(tmp_path / "first")
    where = ("--listen", "127.0.0.1:0", "--members", str(first.path))
    same = said("serve", "quickstart", *where, "--overwrite", "--out", str(first.path))
    assert "the new run needs a directory of its own" in same
    nothing = ("--members", str(tmp_path), "--out", str(tmp_path / "new"))
    told = said("serve", "quickstart", "--listen", "127.0.0.1:0", *nothing)
    assert f"--members {tmp_path}: not the folder of a served run" in told
    first.folder.register.enrol(first.folder.invite(seat=9).id, bytes(32), "attic", 10)
    few = ("--set", "fleet.devices=3", "--out", str(tmp_path / "new"))
    assert "there is a device in seat 9, but fleet.devices = 3" in said("serve", "quickstart", *where, *few)
    assert not (tmp_path / "new").exists(), "nothing was begun"
