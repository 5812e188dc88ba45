"""Processes that die: the server by kill -9 under load, a device at every step of a delivery."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedasmu import Result
from fedasmu.network import failpoint
from fedasmu.network.drawer import Drawer, Parcel
from helpers.federation import Federation
from helpers.killing import killed_while_removing
from helpers.repository import ROOT
from helpers.served import eventually


def benchmark(*arguments: str) -> dict[str, object]:
    """The short form of what benchmarks/network.py measures: its one JSON line."""
    command = [sys.executable, str(ROOT / "benchmarks" / "network.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_killed_server_has_lost_nothing_and_counts_nothing_twice() -> None:
    figures = benchmark("kill", "--times", "1", "--devices", "2", "--pause", "0.2")
    assert figures["acknowledged"]
    assert (figures["recovered"], figures["missing"], figures["double"]) == (1, 0, 0)
    assert figures["model_is_replay"]
    assert figures["exit"] == 0


def test_mutated_frames_crash_nothing() -> None:
    figures = benchmark("attack", "frames", "--count", "3000")
    assert figures["malformed"]
    assert figures["crashes"] == 0


def test_half_of_the_devices_are_killed_and_nobody_waits_for_them() -> None:
    figures = benchmark("faults", "half", "--devices", "4", "--lease", "4", "--model", "softmax")
    assert figures["still_held"] == 0
    assert (figures["missing"], figures["double"], figures["model_is_replay"]) == (0, 0, True)


def test_nothing_hostile_gets_in_over_the_socket() -> None:
    figures = benchmark("attack", "all", "--count", "150", "--devices", "2", "--model", "softmax")
    assert (figures["accepted"], figures["files_outside"], figures["pickle_events"]) == (0, [], 0)
    assert figures["honest_uploads_go_on"]
    assert (figures["missing"], figures["double"], figures["model_is_replay"]) == (0, 0, True)


def test_a_load_of_devices_is_carried() -> None:
    figures = benchmark("load", "--devices", "4", "--uploads", "20", "--model", "softmax")
    assert figures["uploads"]
    assert (figures["double"], figures["broken_off"], figures["exit"]) == (0, 0, 0)


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the wrong clock")
def test_a_server_whose_clock_jumps_by_hours_and_years_decides_the_same() -> None:
    """Its devices' clocks are right. Nobody's lease runs out, and the run's own time goes on."""
    figures = benchmark("clock", "jumps", "--devices", "2", "--model", "softmax")
    uploads = figures["uploads"]
    assert isinstance(uploads, dict)
    assert len(uploads) == 4
    assert all(uploads.values())
    assert (figures["lost"], figures["time_goes_on"], figures["exit"]) == (0, True, 0)
    assert (figures["missing"], figures["double"], figures["model_is_replay"]) == (0, 0, True)


def test_a_bad_network_loses_and_doubles_nothing() -> None:
    figures = benchmark("faults", "proxy", "--devices", "4", "--uploads", "20", "--model", "softmax")
    assert figures["dropped"]
    assert (figures["missing"], figures["double"], figures["model_is_replay"]) == (0, 0, True)


def test_a_device_that_dies_at_any_step_of_a_delivery_comes_back_to_the_same_task(tmp_path: Path) -> None:
    """Its process ends before it sends, after the server's answer, and after it has kept its memory."""
    federation = Federation(
        tmp_path,
        algorithm={"name": "feddyn"},
        model={"name": "mlp"},
        stop={"uploads": 4},
        pacing={"period": 0.02, "max_in_flight": 1, "count": 1},
        network={"gather": 0.0, "lease": 100.0, "offer": 100.0},
        factory=None,
    )
    shard = federation.data.shards[0]
    own = federation.data.train.subset(shard)
    np.savez(tmp_path / "own.npz", inputs=own.inputs.numpy(), targets=own.targets.numpy())
    federation.start()
    command = [sys.executable, "-m", "fedasmu", "join", federation.folder.url, "--data", str(tmp_path / "own.npz")]
    command += ["--state", str(tmp_path / "state"), "--invite", str(federation.folder.invite(seat=0))]
    for point in ("outbox.saved", "outbox.sent", "memory.saved"):
        environment = {**os.environ, "FEDASMU_FAIL": f"{point}:1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
        assert done.returncode == failpoint.CODE, done.stderr + done.stdout
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "the run is over" in done.stdout
    federation.wait()
    summary = Result(federation.path).summary
    assert (summary["uploads"], summary["lost"], summary["refused"]) == (4, 0, 0)


def test_a_device_that_dies_while_it_lets_go_of_what_it_has_delivered_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawer = Drawer(tmp_path, print)
    drawer.enter("run")
    drawer.post(Parcel(7, b"frame", {}))
    with killed_while_removing(monkeypatch, "state.json"):
        drawer.settle(Parcel(7, b"frame", {}), keep=True)
    drawer.close()
    again = Drawer(tmp_path, print)
    again.enter("run")
    assert again.parcel() is None
    again.close()


def test_a_server_that_is_told_to_stop_keeps_everything_and_goes_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 30})
    federation.start()
    for number in range(4):
        federation.work(federation.device(number))
    assert eventually(lambda: _received(federation) >= 8)
    federation.stop()
    received = _received(federation)
    federation.start()
    federation.wait()
    assert Result(federation.path).summary["uploads"] >= 30 > received


def _received(federation: Federation) -> int:
    coordinator = getattr(federation.serving, "coordinator", None)
    return 0 if coordinator is None else int(coordinator.server.counters.received)
