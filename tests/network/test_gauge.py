"""What a service tells of itself while it works, and after it was started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedasmu import Result
from fedasmu.network.client import Client
from fedasmu.network.gauge import FILE, TRACE, Gauge
from fedasmu.network.keys import Key
from helpers.blobs import Run
from helpers.federation import Federation


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A federation whose run is over."""
    federation = Federation(tmp_path_factory.mktemp("gauge"), stop={"uploads": 20})
    federation.run()
    return federation


def test_it_tells_of_every_device(over: Federation) -> None:
    told = json.loads((over.path / FILE).read_text())
    assert (told["state"], told["disk_full"], told["recovered_acts"]) == ("over", False, 0)
    assert [device["device"] for device in told["devices"]] == list(range(10))
    uploads = sum(event["event"] == "upload" for event in Result(over.path).events)
    under_way = 4  # at most: a request counts once it is answered
    assert sum(device["bytes_up"] for device in told["devices"]) >= (uploads - under_way) * over.world.layout.bytes
    assert {device["state"] for device in told["devices"]} <= {"working", "waiting"}
    assert told["requests"] >= uploads - under_way


def test_refusals_are_counted_by_their_code(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 1000})
    federation.start()
    client = Client(federation.folder.url, Key.at(tmp_path / "key"), [federation.folder.pin()])
    client.enrol(federation.folder.invite(seat=0), "device-0", 20)
    client.hello(20)
    assert client.request("POST", "/v1/tasks/7/beat").status == 410
    client.visit = "over"
    assert [client.request("GET", "/v1/task").status for _ in range(2)] == [401, 401]
    assert client.request("GET", "/v1/nowhere").status == 404
    assert federation.serving.gauge.refusals == {"gone": 1, "visit": 2, "404": 1}
    federation.stop()


def test_presence_is_a_trace_of_the_run(over: Federation) -> None:
    header, *lines = (over.path / TRACE).read_text().splitlines()
    assert header == "device,start,end"
    assert {int(line.split(",")[0]) for line in lines} == set(range(10))
    until = json.loads((over.path / FILE).read_text())["time"]
    assert all(0 <= float(line.split(",")[1]) <= float(line.split(",")[2]) <= until for line in lines)


def test_the_lines_of_the_metrics_are_dated(over: Federation, run: Run) -> None:
    simulated = run(stop={"uploads": 20})
    for directory in (over.path, simulated.directory):
        dated = [line.split(",") for line in (directory / "wall.csv").read_text().splitlines()]
        curve = Result(directory).curve
        assert {(float(uploads), float(time)) for uploads, time, _ in dated} <= set(
            zip(curve["uploads"].tolist(), curve["time"].tolist(), strict=True)
        )
        assert len(dated) >= len(curve["time"]) - 1, "the first may be older than the watch"
        assert [float(wall) for *_, wall in dated] == sorted(float(wall) for *_, wall in dated)


@pytest.mark.parametrize("found", ["", "device,start,end\n1,x,2\n", "nonsense", "device,start,end\n1,2\n"])
def test_a_broken_trace_is_begun_anew(over: Federation, tmp_path: Path, found: str) -> None:
    (tmp_path / TRACE).write_text(found)
    assert Gauge(tmp_path, over.serving.coordinator, 0).recovered == 0
