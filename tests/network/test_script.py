"""Same bits: every method, played over real TLS sockets in the order of its simulation, leaves the simulation's files.

Here the devices are threads of this process, for the gate's time; `fedasmu rehearse --script` has a process for each.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedasmu import Result
from fedasmu.algorithms import NAMES
from fedasmu.network import client as clients
from fedasmu.network import replies
from fedasmu.network.acts import Acts
from fedasmu.network.ledger import DiskFull
from fedasmu.network.rehearsal import simulated
from fedasmu.storage.record import SAME_BYTES, differing
from helpers.blobs import blobs
from helpers.federation import Federation, scripted


@pytest.mark.parametrize("name", NAMES)
def test_the_network_leaves_the_files_of_the_simulation(tmp_path: Path, name: str) -> None:
    federation = scripted(tmp_path, name)
    assert federation.lines is not None
    assert {line.kind for line in federation.lines} >= {"start", "sending", "upload", "flush"}
    federation.run()
    assert federation.serving.script.differing == []
    assert differing(tmp_path / "simulated", federation.path) == []
    assert len(SAME_BYTES) == 3


def test_devices_are_calibrated_as_in_the_simulation(tmp_path: Path) -> None:
    calibrated = scripted(tmp_path / "calibrated", "fedasync", local={"calibrate": True})
    calibrated.run()
    assert differing(tmp_path / "calibrated/simulated", calibrated.path) == []
    scripted(tmp_path / "plain", "fedasync")
    assert "model.safetensors" in differing(tmp_path / "plain/simulated", calibrated.path)


@pytest.mark.parametrize("by", ["server", "devices"])
def test_devices_measure_over_the_network_what_they_measure_in_the_simulation(tmp_path: Path, by: str) -> None:
    federation = Federation(
        tmp_path,
        data=blobs(devices=5),
        algorithm={"name": "fedasmu"},
        fleet={"devices": 5, "dropout": 0.15},
        pacing={"period": 5.0, "count": 2, "max_in_flight": 3},
        evaluate={"by": by, "on_devices": 0.2},
        stop={"uploads": 16},
    )
    federation.lines = simulated(federation.world, tmp_path / "simulated")
    federation.run()
    assert differing(tmp_path / "simulated", federation.path) == []
    assert Result(federation.path).curve["device_accuracy"][-1] > 0.5


def test_a_simulation_to_be_played_says_what_ended_it(tmp_path: Path) -> None:
    federation = Federation(
        tmp_path, data=blobs(devices=5), algorithm={"name": "fedasync"}, stop={"uploads": 1000, "time": 50.0}
    )
    simulated(federation.world, tmp_path / "simulated")
    assert Result(tmp_path / "simulated").summary["ended"] == "time"


def test_a_script_goes_on_where_a_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other act finds no room at first, those that need no request among them."""
    monkeypatch.setattr(clients, "FIRST", 0.01)
    monkeypatch.setattr(replies, "WAIT", 0)
    federation, do, tried = scripted(tmp_path, "fedasmu"), Acts.do, Counter[str]()

    def full_at_first(self: Acts, kind: str, *given: Any, **head: Any) -> None:
        tried[kind] += 1
        if tried[kind] % 2 and kind not in ("begin", "seat", "flush"):
            raise DiskFull("No space left on device")
        do(self, kind, *given, **head)

    with monkeypatch.context() as patch:
        patch.setattr(Acts, "do", full_at_first)
        federation.run()
    assert tried.keys() >= {"start", "fetch", "sending", "upload"}
    assert federation.serving.script.differing == []
    assert differing(tmp_path / "simulated", federation.path) == []
