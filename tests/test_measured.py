"""From the times of a run to a fleet: what was measured is simulated again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedasmu import Experiment, Result
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.events import Delivered, Lost, Started, Verdict
from fedasmu.measured import Times, measure
from helpers.blobs import Run, blobs, settings
from helpers.federation import Federation, network


def test_times_by_hand() -> None:
    def deliver(time: float, task: int, device: int) -> Delivered:
        return Delivered(time, task, device, 0, 1, Verdict.ACCEPTED, 0.5)

    times = Times.of(
        [
            *(Started(0.0, task, device, 0) for task, device in ((0, 4), (1, 7))),
            deliver(9.0, 0, 4),
            Started(10.0, 2, 4, 0),
            Lost(20.0, 1, 7),
            deliver(21.0, 2, 4),
        ]
    )
    assert times.seconds == {4: [9.0, 11.0]}
    assert times.dropout == pytest.approx(1 / 3)
    assert times.jitter == pytest.approx(2 * 0.1)  # both are a tenth off their mean
    assert times.until == 21.0


def test_a_fleet_is_measured_and_simulated_again(tmp_path: Path) -> None:
    """Over real sockets, with devices that take their time: what is simulated takes as long as what was measured."""
    paced: dict[str, Any] = {"data": blobs(devices=4), "algorithm": {"name": "fedasync"}, "stop": {"uploads": 24}}
    paced |= {"fleet": {"devices": 4}, "pacing": {"period": 0.05, "max_in_flight": 4}}
    federation = Federation(tmp_path, **paced)
    federation.start()
    devices = [federation.device(number, seconds_per_sample=0.01 * (number + 1)) for number in range(4)]
    for device in devices:
        device.join()
    for device in devices:
        federation.work(device)
    federation.wait()
    (federation.path / "config.toml").write_text(federation.world.config.toml())

    answer = CliRunner().invoke(app, ["fleet", "from", str(federation.path), "--out", str(tmp_path / "fleet")])
    assert answer.exit_code == 0, answer.output
    keys = tomllib.loads("\n".join(line for line in answer.output.replace("\\\n", "").split("\n") if "=" in line))
    assert keys["devices"] == 4

    found = measure(federation.path)
    rates = [profile.seconds_per_sample for profile in found.profiles]
    assert all(rate >= 0.01 * (number + 1) for number, rate in enumerate(rates))
    fleet = {**found.write(tmp_path / "fleet"), "jitter": 0.0}
    table = settings(**{**paced, "fleet": fleet})
    del table["data"]
    again = Experiment(table, model=network, data=blobs(devices=4)).run(tmp_path / "again", workers="inline")
    measured = Times.of(Result(federation.path).typed_events)
    simulated = Times.of(again.typed_events)
    both = measured.seconds.keys() & simulated.seconds.keys()
    assert both
    for number in both:
        mean = sum(measured.seconds[number]) / len(measured.seconds[number])
        assert simulated.seconds[number][0] == pytest.approx(mean, rel=0.02, abs=0.02)


def test_a_simulation_is_not_measured(run: Run) -> None:
    with pytest.raises(UserError, match="not a run that was served or rehearsed"):
        measure(run(stop={"uploads": 5}).directory)
