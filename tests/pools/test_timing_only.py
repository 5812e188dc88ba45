"""Schedules of large fleets without training: what they need grows with the devices in flight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedasmu import Experiment
from helpers.blobs import Run
from helpers.repository import ROOT

SCRIPT = """
import json, re, sys
from pathlib import Path
from fedasmu import Experiment
settings = {
    "timing_only": True,
    "fleet": {"devices": 100_000, "preset": "unreliable"},
    "pacing": {"period": 1.0, "count": 200, "max_in_flight": 0.05},
    "algorithm": {"name": sys.argv[2]},
    "evaluate": {"every": 1000},
    "stop": {"uploads": 10_000},
}
result = Experiment(settings).run(sys.argv[1])
# Not getrusage: what it calls the peak is inherited from the process that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"peak": peak, **result.summary}))
"""


@pytest.mark.parametrize("method", ["fedasync", "fedavg"])
def test_a_hundred_thousand_devices_fit_into_a_gibibyte(method: str, tmp_path: Path) -> None:
    line = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), method]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["uploads"] == 10_000
    assert summary["lost"] > 100
    assert summary["peak"] < 1 << 30


def test_no_model_is_left_behind(run: Run) -> None:
    result = run(timing_only=True)
    assert not (result.directory / "model.safetensors").exists()
    assert result.summary["uploads"] == 60
    assert set(result.curve["accuracy"]) == {0.0}


def test_neither_data_nor_files_are_needed(tmp_path: Path) -> None:
    settings = {
        "timing_only": True,
        "data": {"name": "cifar-10", "dir": str(tmp_path), "download": False, "per_device": 50},
        "algorithm": {"name": "fedavg"},
        "stop": {"uploads": 20},
    }
    assert Experiment(settings).run(tmp_path / "run").summary["uploads"] == 20
