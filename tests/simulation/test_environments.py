"""The named fleets, traces and profiles: what they say is what a run meets."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest

from fedasmu.commands.listing import fleets
from fedasmu.errors import UserError
from fedasmu.run.profiles import profiles
from fedasmu.settings.fleets import PRESETS_OF_FLEETS, FleetSettings
from fedasmu.settings.recipe import parse
from fedasmu.simulation.build import fleet
from fedasmu.simulation.fleet import Fleet
from helpers.blobs import Run
from helpers.repository import ROOT

PAGE = ROOT / "docs" / "how-to" / "environments.md"


def made(seed: int = 0, **keys: Any) -> Fleet:
    drawn = FleetSettings.model_validate(keys)
    return fleet(profiles(drawn, seed), drawn, seed)


def ratio(devices: Fleet) -> float:
    times = [profile.seconds_per_sample for profile in devices.profiles]
    return max(times) / min(times)


@pytest.mark.parametrize(("preset", "expected"), [("base", 5), ("het110", 110), ("het440", 440)])
def test_slowest_over_fastest(preset: str, expected: float) -> None:
    assert ratio(made(preset=preset)) == pytest.approx(expected)


@pytest.mark.parametrize(("preset", "times"), [("bandwidth-50", 50), ("bandwidth-100", 100)])
def test_narrow_links_are_so_many_times_narrower(preset: str, times: float) -> None:
    for normal, narrow in zip(made().profiles, made(preset=preset).profiles, strict=True):
        assert (normal.down_mbps, normal.up_mbps) == pytest.approx((times * narrow.down_mbps, times * narrow.up_mbps))
        assert narrow.down_mbps > narrow.up_mbps


def test_fleet_sizes() -> None:
    assert (len(made()), len(made(preset="devices-200"))) == (100, 200)


def trips(devices: Fleet, model: int = 177_704) -> list[float]:
    """The round trips of a task: 3 epochs over 600 examples, and a model of so many bytes both ways."""
    return [one.download(model) + 1800 * one.seconds_per_sample + one.upload(model) for one in devices.profiles]


def test_the_wireless_cell_has_log_normal_round_trips() -> None:
    logarithms = sorted(math.log(trip) for trip in trips(made(preset="wireless175", devices=4000)))
    assert fmean(logarithms) == pytest.approx(3.98, abs=0.06)
    assert stdev(logarithms) == pytest.approx(1.16, abs=0.04)
    # A normal distribution: 68 % within one standard deviation, 95 % within two.
    for width, share in ((1, 0.683), (2, 0.954)):
        within = sum(abs(one - 3.98) < width * 1.16 for one in logarithms)
        assert within / 4000 == pytest.approx(share, abs=0.03)
    assert 50 < median(ratio(made(preset="wireless175", seed=seed)) for seed in range(15)) < 600


def test_sigma_spreads_training_and_links_alike() -> None:
    alike = made(spread="log-normal", sigma=0.0, link_spread=[1.0, 1.0]).profiles
    assert {(one.seconds_per_sample, one.down_mbps) for one in alike} == {(0.01, 100.0)}
    for one in made(spread="log-normal", sigma=2.0, link_spread=[1.0, 1.0]).profiles:
        assert one.seconds_per_sample * one.down_mbps == pytest.approx(1.0)
    assert made(spread="log-normal").profiles == made(spread="log-normal").profiles
    assert made(spread="log-normal").profiles != made(spread="log-normal", seed=1).profiles


@pytest.mark.parametrize("preset", PRESETS_OF_FLEETS)
def test_each_preset_runs_and_stands_whole_in_the_record(preset: str, run: Run) -> None:
    changed: dict[str, Any] = {"preset": preset, "devices": 10}
    result = run(timing_only=True, fleet=changed, stop={"uploads": 20})
    assert result.summary["uploads"] == 20
    written = (result.directory / "config.toml").read_text()
    assert all(f"{key} = " in written for key in PRESETS_OF_FLEETS[preset][1])


def test_presets_compose(run: Run) -> None:
    both = FleetSettings.model_validate({"preset": ["wireless175", "unreliable", "bandwidth-50"]})
    assert (both.spread, both.dropout, both.up_mbps, both.seconds_per_sample) == ("log-normal", 0.05, 0.4, 0.02973)
    result = run(timing_only=True, fleet={"preset": ["het440", "unreliable"], "devices": 10}, stop={"uploads": 200})
    assert result.summary["lost"] > 0


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"fleet\.preset = .het100.: unknown fleet; did you mean het110\? \(allowed: base,"
    ):
        parse({"fleet": {"preset": "het100"}, "algorithm": "fedavg"})


def test_the_pages_trace_and_profiles(run: Run, tmp_path: Path) -> None:
    for name, text in re.findall(r"`(\w+\.csv)`:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    given: dict[str, Any] = {"profiles": str(tmp_path / "profiles.csv"), "trace": str(tmp_path / "trace.csv")}
    with pytest.raises(UserError, match=r"fleet.profiles has 3 devices, but there are 10 in all"):
        run(timing_only=True, fleet=given)
    result = run(timing_only=True, fleet=given | {"devices": 3}, stop={"uploads": 1000})
    starts = [(event["device"], event["time"]) for event in result.events if event["event"] == "start"]
    assert {device for device, _ in starts} == {0, 1, 2}
    assert all(0 <= time < 3600 or 7200 <= time < 9000 for device, time in starts if device == 0)
    assert 0 < result.summary["uploads"] < 1000  # nobody is there after the trace's end


def test_the_page_names_every_preset() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(row["name"], row["description"]) for row in fleets()]
