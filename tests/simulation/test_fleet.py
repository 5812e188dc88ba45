"""The devices: drawn, measured and replayed; online and offline; dying."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedasmu.errors import UserError
from fedasmu.run.profiles import Profile, draw_profiles, profiles, read_profiles, write_profiles
from fedasmu.settings.fleets import FleetSettings
from fedasmu.simulation.build import fleet
from fedasmu.simulation.fleet import Cycle, Fleet, Trace
from helpers.blobs import Run

LINKS = {"down_mbps": 100.0, "up_mbps": 20.0, "link_spread": (0.5, 2.0), "latency": 0.05}


def drawn(devices: int, ratio: float, spread: str = "uniform", seed: int = 0) -> list[Profile]:
    return draw_profiles(devices, seed, spread, ratio, 0.01, **LINKS)  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", ["uniform", "log-uniform"])
@pytest.mark.parametrize(("devices", "ratio"), [(2, 5.0), (100, 5.0), (100, 110.0), (37, 1.0)])
def test_the_ratio_of_slowest_to_fastest_is_exact(spread: str, devices: int, ratio: float) -> None:
    speeds = [profile.seconds_per_sample for profile in drawn(devices, ratio, spread)]
    assert min(speeds) == 0.01
    assert max(speeds) == 0.01 * ratio


def test_speeds_are_spread_as_asked() -> None:
    uniform = sorted(profile.seconds_per_sample / 0.01 for profile in drawn(2000, 101.0))
    logarithmic = sorted(profile.seconds_per_sample / 0.01 for profile in drawn(2000, 100.0, "log-uniform"))
    assert uniform[1000] == pytest.approx(51, rel=0.05)
    assert logarithmic[1000] == pytest.approx(10, rel=0.15)


def test_one_device_is_the_fastest() -> None:
    assert drawn(1, 5.0)[0].seconds_per_sample == 0.01


def test_links_stay_in_their_spread_and_the_seed_decides() -> None:
    found = drawn(200, 5.0)
    assert all(50 <= profile.down_mbps <= 200 for profile in found)
    assert all(profile.down_mbps == pytest.approx(5 * profile.up_mbps) for profile in found)
    assert found == drawn(200, 5.0)
    assert found != drawn(200, 5.0, seed=1)


def test_transfers_take_latency_plus_size_over_bandwidth() -> None:
    profile = Profile(0.01, down_mbps=8.0, up_mbps=2.0, latency=0.5)
    assert profile.download(3_000_000) == 0.5 + 3.0
    assert profile.upload(1_000_000) == 0.5 + 4.0


def test_profiles_read_back_exactly(tmp_path: Path) -> None:
    written = drawn(50, 5.0)
    write_profiles(written, tmp_path / "fleet.csv")
    (tmp_path / "fleet.json").write_text(json.dumps([asdict(profile) for profile in written]))
    for name in ("fleet.csv", "fleet.json"):
        assert read_profiles(tmp_path / name) == written


def test_a_runs_fleet_can_be_replayed(run: Run) -> None:
    first = run(seed=5, timing_only=True)
    again = run(seed=5, timing_only=True, fleet={"profiles": str(first.directory / "fleet.csv")})
    assert (again.directory / "events.jsonl").read_bytes() == (first.directory / "events.jsonl").read_bytes()


BAD_PROFILES = {
    "no device": ("p.csv", "device,seconds_per_sample,down_mbps,up_mbps,latency\n", "no device"),
    "missing column": ("p.csv", "device,seconds_per_sample,down_mbps,latency\n0,1,2,3\n", "no column 'up_mbps'"),
    "not a number": ("p.csv", "seconds_per_sample,down_mbps,up_mbps,latency\n1,2,x,0\n", "device 0: .*'x'"),
    "zero speed": (
        "p.csv",
        "seconds_per_sample,down_mbps,up_mbps,latency\n1,2,3,0\n0,2,3,0\n",
        "device 1: seconds_per_",
    ),
    "infinite": ("p.csv", "seconds_per_sample,down_mbps,up_mbps,latency\n1,inf,3,0\n", "positive number"),
    "negative latency": ("p.csv", "seconds_per_sample,down_mbps,up_mbps,latency\n1,2,3,-1\n", "latency = -1.0"),
    "short line": ("p.csv", "seconds_per_sample,down_mbps,up_mbps,latency\n1,2\n", "every device needs"),
    "bad JSON": ("p.json", "[{", "cannot be read"),
    "JSON of something else": ("p.json", "7", "expected a list"),
    "JSON of a list of numbers": ("p.json", "[7]", "every device needs"),
}


@pytest.mark.parametrize(("name", "text", "message"), BAD_PROFILES.values(), ids=BAD_PROFILES.keys())
def test_bad_profiles_are_refused_with_a_reason(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_profiles(tmp_path / name)


def traced(text: str, tmp_path: Path) -> Trace:
    (tmp_path / "trace.csv").write_text("device,start,end\n" + text)
    return Trace.read(tmp_path / "trace.csv")


def test_a_trace_says_when_a_device_is_there(tmp_path: Path) -> None:
    trace = traced("1,50,60\n0,10,20\n1,5,15\n", tmp_path)
    assert [trace.until(1, time) for time in (4.9, 5, 14.9, 15, 50, 60)] == [None, 15, 15, None, 60, None]
    assert trace.until(0, 10) == 20
    assert trace.until(2, 10) is None
    assert trace.horizon == 60


def test_windows_that_overlap_or_touch_are_one(tmp_path: Path) -> None:
    trace = traced("0,0,100\n0,10,20\n0,100,150\n0,151,160\n", tmp_path)
    assert [trace.until(0, time) for time in (5, 15, 50, 120, 150.5, 155)] == [150, 150, 150, 150, None, 160]


@pytest.mark.parametrize("line", ["0,20,10", "0,-1,5", "0,5", "x,1,2", "0,nan,2", "0,5,5"])
def test_a_bad_trace_names_its_line(line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 3"):
        traced(f"0,1,2\n{line}\n", tmp_path)


def test_a_bad_trace_is_told_by_its_key(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("device,seconds\n0,5\n")
    with pytest.raises(UserError, match=r"^fleet\.trace: .*trace\.csv, line 2: expected the columns device,start,end"):
        run(fleet={"devices": 10, "trace": str(tmp_path / "trace.csv")})


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.floats(0.01, 1), st.floats(1, 1e4), st.integers(0, 50), st.floats(0, 1e7))
def test_a_cycle_never_ends_before_it_is_asked(share: float, cycle: float, device: int, time: float) -> None:
    until = Cycle(share, cycle, 0).until(device, time)
    assert until is None or time <= until <= time + share * cycle * (1 + 1e-9)


def test_a_cycle_is_online_for_its_share_with_a_phase_for_each_device() -> None:
    cycle = Cycle(0.7, 100.0, seed=0)
    for device in range(5):
        online = [cycle.until(device, float(time)) is not None for time in range(1000)]
        assert sum(online) == pytest.approx(700, abs=10)
    assert len({cycle.until(device, 0.0) for device in range(20)}) > 10


def a_fleet(**changes: float) -> Fleet:
    return Fleet(drawn(10, 5.0), 0, **changes)  # type: ignore[arg-type]


def test_a_reliable_fleet_never_dies_and_never_varies() -> None:
    assert a_fleet().death(3, 1, 10.0, 5.0) == math.inf
    assert a_fleet().slowdown(3) == 1.0


def test_jitter_stays_within_its_share_and_averages_out() -> None:
    slowdowns = [a_fleet(jitter=0.2).slowdown(task) for task in range(1000)]
    assert all(0.8 <= slowdown <= 1.2 for slowdown in slowdowns)
    assert sum(slowdowns) / 1000 == pytest.approx(1.0, abs=0.02)


def test_dropout_kills_its_share_of_tasks_while_they_run() -> None:
    deaths = [a_fleet(dropout=0.25).death(task, 0, 100.0, 8.0) for task in range(2000)]
    died = [death for death in deaths if death < math.inf]
    assert len(died) == pytest.approx(500, abs=60)
    assert all(100 <= death < 108 for death in died)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedasync"},
        {"name": "asyncdrop", "time_factor": 0.2},  # a task that is over before its usual time
        {"name": "fedsa", "first_epochs": 3.0},  # and one that takes longer
    ],
    ids=lambda algorithm: str(algorithm["name"]),
)
def test_dropout_loses_its_share_however_long_a_task_takes(algorithm: dict[str, object], run: Run) -> None:
    fleet = {"dropout": 0.3, "seconds_per_sample": 0.1}
    result = run(algorithm=algorithm, timing_only=True, fleet=fleet, stop={"uploads": 1000})
    lost = result.summary["lost"]
    assert lost / (lost + 1000) == pytest.approx(0.3, abs=0.03)


def test_going_offline_ends_a_task() -> None:
    fleet = Fleet(drawn(2, 5.0), 0, availability=Trace({0: [(0, 50)]}))
    assert fleet.death(0, 0, 10.0, 500.0) == 50


def test_presets_compose_and_can_be_overridden() -> None:
    both = FleetSettings.model_validate({"preset": ["het110", "bandwidth-50"], "up_mbps": 3.0})
    assert (both.slowest_over_fastest, both.spread, both.down_mbps, both.up_mbps) == (110.0, "log-uniform", 2.0, 3.0)
    made = fleet(profiles(both, 0), both, 0)
    speeds = [profile.seconds_per_sample for profile in made.profiles]
    assert max(speeds) / min(speeds) == pytest.approx(110)


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_an_unreliable_fleet_reaches_the_end(method: str, run: Run) -> None:
    result = run(
        algorithm={"name": method},
        timing_only=True,
        fleet={"preset": "unreliable", "dropout": 0.4, "cycle": 20.0, "seconds_per_sample": 0.001},
        stop={"uploads": 300},
    )
    assert result.summary["uploads"] == 300
    assert result.summary["lost"] > 50


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_a_run_ends_when_nobody_ever_comes_back(method: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("device,start,end\n3,0,1000\n4,500,900\n")
    result = run(
        algorithm={"name": method}, timing_only=True, fleet={"trace": str(tmp_path / "trace.csv"), "latency": 1.0}
    )
    assert {event["device"] for event in result.events if event["event"] == "start"} <= {3, 4}
    assert 0 < result.summary["uploads"] < 60
    assert result.summary["virtual_seconds"] >= 1000


def test_profiles_are_told_apart_by_their_number_not_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    header = "device,seconds_per_sample,down_mbps,up_mbps,latency\n"
    path.write_text(header + "1,0.2,1,1,0\n0,0.1,1,1,0\n")
    assert [profile.seconds_per_sample for profile in read_profiles(path)] == [0.1, 0.2]
    path.write_text(header + "1,0.2,1,1,0\n1,0.1,1,1,0\n")
    with pytest.raises(UserError, match="number 2 devices from 0 to 1"):
        read_profiles(path)
