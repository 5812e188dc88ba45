"""From the times of a run to a fleet: what was measured is simulated again."""

from __future__ import annotations

import resource
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedasmu import Experiment, Result
from fedasmu.cli import app
from fedasmu.errors import UserError
from fedasmu.events import Delivered, Event, Lost, Started, Verdict
from fedasmu.run import links
from fedasmu.run.links import Way
from fedasmu.run.measured import WIDE, Times, measure
from fedasmu.run.profiles import Profile
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
    assert times.dropout() == pytest.approx(1 / 3)
    assert times.dropout([(7, 0.0, 12.0), (4, 0.0, 1e9)]) == 0.0, (
        "it left with its task, and the trace has that already"
    )
    assert times.dropout([(7, 12.0, 30.0), (4, 0.0, 12.0)]) == pytest.approx(1 / 3), "it was there all the time"
    assert times.jitter == pytest.approx(2 * 0.1)  # both are a tenth off their mean
    assert times.until == 21.0
    assert times.profile(4, 100) == Profile(0.1, WIDE, WIDE), "who tells nothing of its parts only trains"


def test_a_task_that_ends_without_a_beginning_is_a_damaged_file() -> None:
    for event in (Lost(20.0, 1, 7), Delivered(21.0, 1, 7, 0, 1, Verdict.ACCEPTED, 0.5)):
        with pytest.raises(UserError, match=r"events\.jsonl: task 1 of device 7 ends and never began"):
            Times.of([event])


def test_the_parts_of_a_task_by_hand() -> None:
    """Two tasks of 10 and 20 seconds: 2 and 4 of them up, 5 and 13 training, so 3 and 3 down."""
    events: list[Event] = []
    for number, took in enumerate((10.0, 20.0)):
        events += [Started(0.0, number, 7, 0), Delivered(took, number, 7, 0, 1, Verdict.ACCEPTED, 0.5)]
    ways = {0: Way(0, 2.0, 5.0, 1_500_000, 500_000), 1: Way(1, 4.0, 13.0, 1_500_000, 1_000_000)}
    times = Times.of(events, ways)
    assert times.profile(7, 90) == Profile(9 / 90, 8 * 3 / 6, 8 * 1.5 / 6)
    assert times.jitter == pytest.approx(2 * 4 / 9)


@pytest.mark.parametrize(
    ("way", "parts"),
    [
        (Way(0, 2.0, 5.0, 1, 1), (3.0, 5.0, 2.0)),
        (Way(0, 2.0, 500.0, 1, 1), (0.0, 8.0, 2.0)),
        (Way(0, 50.0, 5.0, 1, 1), (0.0, 0.0, 10.0)),
    ],
)
def test_a_device_is_believed_as_far_as_it_fits(way: Way, parts: tuple[float, float, float]) -> None:
    assert way.of(10.0) == parts


def test_what_is_written_of_links_is_read_again(tmp_path: Path) -> None:
    assert links.read(tmp_path) == {}
    ways = [Way(3, 0.5, 1.25, 10, 20), Way(4, 0.0, 0.0, 1, 1)]
    for way in ways:
        links.add(tmp_path, [way])
    assert links.read(tmp_path) == {3: ways[0], 4: ways[1]}


@pytest.mark.parametrize("known", [[], [Way(3, 0.5, 2.0, 100, 50)]])
def test_a_line_for_which_there_is_no_room_leaves_no_part_of_it(tmp_path: Path, known: list[Way]) -> None:
    """On a disk that has room for some bytes of it."""
    if known:
        links.add(tmp_path, known)
    size = (tmp_path / links.FILE).stat().st_size if known else 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            links.add(tmp_path, [Way(4, 0.5, 2.0, 100, 50)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    links.add(tmp_path, [Way(5, 0.5, 2.0, 100, 50)])
    assert list(links.read(tmp_path)) == [*(way.task for way in known), 5]


@pytest.mark.parametrize("line", ["1,2,3", "1,-1,0,1,1", "1,0,nan,1,1", "1,0,0,0,1", "x,0,0,1,1"])
def test_links_that_cannot_be_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / links.FILE).write_text(f"task,upload,training,bytes_down,bytes_up\n{line}\n")
    with pytest.raises(UserError, match="expected the columns task,upload,training,bytes_down,bytes_up as numbers"):
        links.read(tmp_path)


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
    assert "# devices had 20 to 23 examples; where a simulation deals" in answer.output.replace("\n", " ")

    found = measure(federation.path)
    rates = [profile.seconds_per_sample for profile in found.profiles]
    assert all(rate >= 0.0099 * (number + 1) for number, rate in enumerate(rates))
    delivered = {event.task for event in Result(federation.path).typed_events if isinstance(event, Delivered)}
    assert links.read(federation.path).keys() == delivered
    assert all(profile.down_mbps < WIDE for profile in found.profiles), "the way takes some time, and is not trained"
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
