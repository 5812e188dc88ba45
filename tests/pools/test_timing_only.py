"""Schedules of large fleets without training: what they need grows with the devices in flight."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedasmu import Aggregate, Aggregator, Experiment, Federation, Model, Upload
from fedasmu.algorithms import NAMES, FedAsync
from fedasmu.events import Event, Measured
from fedasmu.server.desk import Desk
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, network, settings
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


class FirstLayer(Aggregator):
    """Mixes the first layer alone."""

    def __init__(self, layout: Layout) -> None:
        self.first = layout.parameters[0]

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        vector = current.vector.clone()
        self.first.view(vector).lerp_(self.first.view(uploads[0].report.vector), 0.5)
        return Aggregate(vector, [0.5])


class LayerByLayer(FedAsync):
    """A method that tells layers apart."""

    name: str = "layer-by-layer"

    @property
    def looks_inside(self) -> bool:
        return True

    def aggregator(self, federation: Federation) -> Aggregator:
        return FirstLayer(federation.layout)


def test_a_method_that_looks_inside_has_a_whole_model_to_look_into(tmp_path: Path) -> None:
    size = Layout.of(network()).size
    for method, expected in ((LayerByLayer(), size), (FedAsync(), 0)):
        sizes: list[int] = []

        def look(desk: Desk, line: Event | Measured, sizes: list[int] = sizes) -> None:
            sizes.append(len(desk.server.model.vector))

        experiment = Experiment(settings(algorithm=method, timing_only=True), model=network)
        assert experiment.run(tmp_path / method.name, observe=look).summary["uploads"] == 60
        assert set(sizes) == {expected}


@pytest.mark.parametrize("precision", ["float32", "float16", "float14"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_does_with_a_model_of_no_elements(name: str, precision: str, run: Run) -> None:
    guard, transfer = {"clip": 3.0, "refuse": 10.0}, {"precision": precision}
    result = run(algorithm={"name": name}, timing_only=True, guard=guard, transfer=transfer, stop={"uploads": 20})
    assert result.summary["uploads"] == 20
    assert result.summary["refused"] == 0


INSIDE: list[dict[str, Any]] = [
    {"name": "asyncdrop"},
    {"name": "asofed", "features": "paper"},
    {"name": "fedasmu", "server_gradient": "uploaded", "merge": False},  # twice as much to send
]


@pytest.mark.parametrize("algorithm", INSIDE, ids=str)
def test_methods_that_look_inside_or_send_more_take_the_time_of_the_real_run(
    algorithm: dict[str, Any], run: Run
) -> None:
    data = blobs()
    even = replace(data, shards=[data.shards[0][:20]] * 10)
    common: dict[str, Any] = {"algorithm": algorithm, "local": {"batch": 10}, "model": network}
    real = run(**common, data=even)
    table = settings(algorithm=algorithm, local={"batch": 10}, timing_only=True, data={"per_device": 20})
    stub = Experiment(table, model=network).run(real.directory.parent / "stub")
    for key in ("virtual_seconds", "bytes_up", "bytes_down"):
        assert stub.summary[key] == real.summary[key]
