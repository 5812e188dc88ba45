"""Whole runs over real TLS sockets: server and devices, as a user has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedasmu import Result
from helpers.federation import Federation


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
