"""Whole runs over real TLS sockets: server and devices, as a user has them."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Sized
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedasmu import Result
from fedasmu.network import certificate, replies
from fedasmu.network import client as clients
from fedasmu.network.client import Client
from fedasmu.network.device import Device
from fedasmu.network.folder import Folder
from fedasmu.network.register import Register
from fedasmu.network.replay import replay
from fedasmu.storage.shelf import Shelf
from helpers.federation import Federation, enrolled
from helpers.served import eventually


@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "fedbuff", "port"])
def test_devices_train_a_model_over_the_network(tmp_path: Path, name: str) -> None:
    federation = Federation(tmp_path, algorithm={"name": name}, stop={"uploads": 40})
    federation.run()
    result = Result(federation.path)
    assert result.summary["uploads"] >= 40
    assert result.summary["workers"] == "network"
    assert result.accuracy > 0.7
    assert sum(device.tasks for device in federation.devices) >= 40


def test_nothing_is_unpickled_in_a_whole_run(tmp_path: Path) -> None:
    """An audit hook sees every class that pickle looks up, in whatever library."""
    found: list[object] = []
    watching = True
    sys.addaudithook(lambda event, given: found.append(given) if watching and event == "pickle.find_class" else None)
    Federation(tmp_path, algorithm={"name": "fedasmu"}, stop={"uploads": 10}).run()
    watching = False
    assert found == []


def test_the_simulator_and_help_need_nothing_of_the_network() -> None:
    code = (
        "import sys, fedasmu.cli, fedasmu.experiment\n"
        "sys.exit(bool({'starlette', 'uvicorn', 'httptools', 'urllib3', 'cryptography'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def written(federation: Federation) -> str:
    events = federation.path / "events.jsonl"
    return events.read_text() if events.exists() else ""


def visits(federation: Federation) -> Sized:
    """Those that the server knows, if it is there already."""
    running = getattr(federation.serving, "running", None)
    return running.door.visits if running else ()


def test_a_server_that_starts_again_waits_for_a_device_in_the_middle_of_its_training(tmp_path: Path) -> None:
    """All that it hears of it, for longer than a lease, are beats of a visit that it does not know."""
    lease = {"lease": 4.0, "offer": 4.0, "poll": 1.0}
    federation = Federation(tmp_path, stop={"uploads": 1}, algorithm={"name": "fedasync"}, network=lease)
    federation.start()
    device = federation.device(0, seconds_per_sample=0.25)
    federation.work(device)
    assert eventually(lambda: '"start"' in written(federation))
    for _ in range(2):  # every visit of the device ends with its server
        federation.stop()
        federation.start()
        assert eventually(lambda: len(visits(federation)) == 1)
    federation.wait()
    summary = Result(federation.path).summary
    assert (summary["uploads"], summary["lost"]) == (1, 0)


def rotate(federation: Federation) -> None:
    """As `fedasmu keys rotate` does, and then `--now`."""
    certificate.make(federation.folder.keys, certificate.NEXT, ["localhost"])
    certificate.switch(federation.folder.keys)


def test_a_device_in_the_middle_of_its_training_turns_to_the_next_certificate(tmp_path: Path) -> None:
    """Its training takes longer than this test: only its beats can meet the certificate that was announced."""
    federation = Federation(tmp_path, stop={"uploads": 1}, network={"lease": 12.0, "poll": 1.0, "gather": 0.0})
    certificate.make(federation.folder.keys, certificate.NEXT, ["localhost"])
    federation.start()
    device = federation.device(0, seconds_per_sample=1000.0)
    federation.work(device)
    assert eventually(lambda: '"start"' in written(federation))
    federation.stop()
    certificate.switch(federation.folder.keys)
    federation.start()
    assert eventually(lambda: len(visits(federation)) == 1)
    device.stop()
    federation.stop()
    federation.wait()


def test_who_says_hello_before_the_server_shows_its_next_certificate_knows_both(tmp_path: Path) -> None:
    """`fedasmu keys rotate --now` has put it in place, and the server is not started again yet."""
    federation = Federation(tmp_path)
    shown = federation.folder.pin()
    federation.start()
    early = enrolled(federation, tmp_path, 0, 20)
    rotate(federation)
    following = federation.folder.pin()
    early.hello(20)
    assert early.pins == [shown, following]
    late = Client(federation.folder.url, early.key, early.pins)  # as a device that was started again
    late.hello(20)
    federation.stop()
    federation.start()
    for client in (early, late):
        client.hello(20)
        assert client.pins == [following]
    federation.stop()


def test_a_server_whose_machine_fails_it_stops_with_the_reason_and_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path, stop={"uploads": 8}, algorithm={"name": "ca2fl"})
    failing = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "get", failing)
        federation.start()
        federation.work(federation.device(0))
        error = federation.failure()
    assert str(error) == f"Too many open files; nothing is lost; go on with: fedasmu serve --resume {federation.path}"
    federation.start()
    federation.wait()
    assert Result(federation.path).summary["lost"] == 0


def test_who_comes_with_other_data_when_the_run_is_over_changes_nothing(tmp_path: Path) -> None:
    pacing = {"period": 0.02, "max_in_flight": 4}
    keep = {"keep": "all", "gather": 0.0}
    federation = Federation(tmp_path, stop={"uploads": 3}, algorithm={"name": "fedasync"}, network=keep, pacing=pacing)
    federation.start()
    late = enrolled(federation, tmp_path, 1, 20)
    federation._thread(lambda: late.download("GET", "/v1/task?wait=5", wait=5))
    federation.work(federation.device(0))
    assert eventually((federation.path / "summary.json").exists)
    late.hello(25)
    federation.stop()
    assert replay(federation.world, Folder(federation.path)).differing == []


def test_devices_come_in_and_tell_of_failures_when_a_full_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is the register that finds none, beside the ledger: a challenge was spent each time."""
    monkeypatch.setattr(clients, "FIRST", 0.01)
    monkeypatch.setattr(replies, "WAIT", 0)
    enrol, full = Register.enrol, [OSError(errno.ENOSPC, "No space left on device")] * 5

    def tried(self: Register, *given: Any) -> Any:
        if full:
            raise full.pop()
        return enrol(self, *given)

    monkeypatch.setattr(Register, "enrol", tried)
    federation, said = Federation(tmp_path, network={"gather": 0.0}), list[str]()
    federation.start()
    device = federation.device(0, say=said.append)
    device.join()
    assert not full
    assert f"{federation.folder.url}: the server's disk is full; it goes on by itself; trying again" in said[0]
    (federation.path / "failures").write_text("in the way")
    monkeypatch.setattr(Device, "_work", Mock(side_effect=ZeroDivisionError))
    for _ in range(2):
        device.step()
    assert federation.serving.coordinator.server.counters.lost == 2
    device.close()
    federation.stop()
    assert "Traceback" not in "".join(capfd.readouterr())
