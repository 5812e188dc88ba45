"""Whole runs over real TLS sockets: server and devices, as a user has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import Federation

from fedasmu import Result


@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "fedbuff", "port"])
def test_devices_train_a_model_over_the_network(tmp_path: Path, name: str) -> None:
    federation = Federation(tmp_path, algorithm={"name": name}, stop={"uploads": 40})
    federation.run()
    result = Result(federation.path)
    assert result.summary["uploads"] >= 40
    assert result.summary["workers"] == "network"
    assert result.accuracy > 0.7
    assert sum(device.tasks for device in federation.devices) >= 40
