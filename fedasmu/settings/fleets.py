"""The fleet's section of a recipe, and the named environments: each is a few of its keys, and they compose."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from pydantic import Field, model_validator

from fedasmu.errors import did_you_mean
from fedasmu.section import SHA256, AbsolutePath, Section

FLEET_FILES = ("profiles", "trace")  # keys that name a file; what counts is its digest, wherever it is

PRESETS_OF_FLEETS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("100 devices, the slowest 5 times slower than the fastest", {}),
    "paper": (
        "the fleet of the paper's tables, as their times allow it: log-normal, a median task of 9 minutes",
        {
            "spread": "log-normal",
            "sigma": 1.16,
            # The least that lets every printed time happen: docs/decisions/0040-the-fleet-of-the-tables.md
            "seconds_per_sample": 0.35,
            "link_spread": [1.0, 1.0],
        },
    ),
    "het110": ("slowest/fastest = 110", {"slowest_over_fastest": 110.0, "spread": "log-uniform"}),
    "het440": ("slowest/fastest = 440", {"slowest_over_fastest": 440.0, "spread": "log-uniform"}),
    "bandwidth-50": ("links 50 times narrower", {"down_mbps": 2.0, "up_mbps": 0.4}),
    "bandwidth-100": ("links 100 times narrower", {"down_mbps": 1.0, "up_mbps": 0.2}),
    "devices-200": ("200 devices", {"devices": 200}),
    "wireless175": (
        "a wireless cell: round trips log-normal, as a log of 100 devices shows them (slowest/fastest = 175)",
        {
            "spread": "log-normal",
            "sigma": 1.16,
            # The logarithm of a round trip's seconds has a mean of 3.98: here for 600 examples and 3 epochs.
            "seconds_per_sample": round(math.exp(3.98) / 1800, 5),
            # Whatever else is drawn would widen the spread.
            "link_spread": [1.0, 1.0],
            "latency": 0.0,
        },
    ),
    "unreliable": ("online 70 % of the time, one task in 20 lost", {"availability": 0.7, "dropout": 0.05}),
}


class FleetSettings(Section):
    preset: str | list[str] = Field("base", description="a named environment, or several that compose")
    devices: int = Field(100, ge=1, description="how many there are; with `split = user`, one a user unless given")
    spread: Literal["uniform", "log-uniform", "log-normal"] = Field(
        "uniform", description="how the devices' training times are drawn; log-normal: their links' too"
    )
    slowest_over_fastest: float = Field(
        5.0, ge=1, allow_inf_nan=False, description="training times, exactly; not for log-normal"
    )
    sigma: float = Field(
        1.16, ge=0, le=10, description="standard deviation of the logarithm of a device's times (log-normal)"
    )
    seconds_per_sample: float = Field(
        0.01, gt=0, allow_inf_nan=False, description="to train once, on the fastest device (log-normal: the median one)"
    )
    down_mbps: float = Field(100.0, gt=0, allow_inf_nan=False, description="megabits a second to a device")
    up_mbps: float = Field(20.0, gt=0, allow_inf_nan=False, description="megabits a second from a device")
    link_spread: tuple[float, float] = Field(
        (0.5, 2.0), description="a device's links are wider by a factor in this range"
    )
    latency: float = Field(0.05, ge=0, allow_inf_nan=False, description="seconds, one way")
    jitter: float = Field(0.0, ge=0, lt=1, description="each task's training time varies by up to this share")
    dropout: float = Field(0.0, ge=0, lt=1, description="chance that a task is never delivered")
    availability: float = Field(1.0, gt=0, le=1, description="share of each cycle that a device is online")
    cycle: float = Field(3600.0, gt=0, allow_inf_nan=False, description="seconds")
    profiles: AbsolutePath | None = Field(None, description="a CSV or JSON of measured devices, instead of drawn ones")
    profiles_sha256: str | None = Field(
        None, pattern=SHA256, description="what sha256sum says of that file; a run directory always has it"
    )
    trace: AbsolutePath | None = Field(None, description="a CSV of device,start,end: when each one is online")
    trace_sha256: str | None = Field(
        None, pattern=SHA256, description="what sha256sum says of that file; a run directory always has it"
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_presets(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        names = table.get("preset", "base")
        merged: dict[str, Any] = {}
        for name in names if isinstance(names, list) else [names]:
            if isinstance(name, str) and "," in name:
                several = json.dumps([part.strip() for part in name.strip("[]").split(",")])
                raise ValueError(f"preset: several are a list, in a shell all of it quoted: 'fleet.preset={several}'")
            if not isinstance(name, str) or name not in PRESETS_OF_FLEETS:
                known = f"allowed: {', '.join(PRESETS_OF_FLEETS)}"
                meant = did_you_mean(str(name), PRESETS_OF_FLEETS)
                raise ValueError(
                    f"preset = {json.dumps(name, default=str, ensure_ascii=False)}: unknown fleet{meant} ({known})"
                )
            merged |= PRESETS_OF_FLEETS[name][1]
        return merged | table

    @property
    def is_vouched_for(self) -> bool:
        return all(getattr(self, key) is None or getattr(self, f"{key}_sha256") is not None for key in FLEET_FILES)

    @model_validator(mode="after")
    def _check_digests(self) -> FleetSettings:
        for key in FLEET_FILES:
            if getattr(self, f"{key}_sha256") is not None and getattr(self, key) is None:
                raise ValueError(f"{key}_sha256 is of {key}, and fleet.{key} names none")
        return self

    @model_validator(mode="after")
    def _check_link_spread(self) -> FleetSettings:
        if not 0 < self.link_spread[0] <= self.link_spread[1] < math.inf:
            raise ValueError(f"link_spread = {list(self.link_spread)}: must be two numbers, 0 < low <= high")
        return self
