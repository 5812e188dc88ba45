"""What is allowed in a recipe, and seldom meant: said before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedasmu.measure import IN_PYTHON
from fedasmu.settings.config import Config

DIVIDING = ("data.split", "data.alpha", "data.min_samples", "data.shards_per_device")  # who gets what
READING = ("data.dir", "data.glove", "data.vocabulary", "data.length", "data.padding", "data.truncation")
LINKS = ("fleet.down_mbps", "fleet.up_mbps", "fleet.link_spread", "fleet.latency")
DRAWN = ("fleet.spread", "fleet.slowest_over_fastest", "fleet.sigma", "fleet.seconds_per_sample", *LINKS)


def remarks(config: Config) -> list[str]:
    devices, every = config.fleet.devices, config.evaluate.every
    limit, waits = config.pacing.pace(devices).limit, config.algorithm.kind == "synchronous"
    found = []
    if devices > 1 and limit == 1 and not waits:
        found.append("1 device in flight: nothing overlaps, and no upload is stale; set pacing.max_in_flight")
    if waits and limit % every and every % limit:  # its models would look later than they are beside other methods'
        found.append(
            f"evaluate.every = {every}: a round is {limit} uploads, so that some are measured after they end; "
            f"a number that divides {limit}, or a multiple of it, would not be late"
        )
    if getattr(config.algorithm, "slot_unit", "") == "epoch" and config.local.epochs == 1:
        found.append("algorithm.slot_unit = epoch, local.epochs = 1: no device asks for a fresh model within one epoch")
    return [*found, *_idle(config)]


def _idle(config: Config) -> Iterator[str]:
    """What is set, and changes nothing beside the other settings."""
    told: set[str] = set()
    for keys, reason in _reasons(config):
        values = {key: _value(config, key) for key in keys if key not in told and not _is_default(config, key)}
        told.update(values)
        if values:
            names = " and ".join(f"{key} = {_shown(value)}" for key, value in values.items())
            yield f"{names} {'is' if len(values) == 1 else 'are'} not used: {reason}"


def _reasons(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys without influence, and why; of a key the first reason counts."""
    data, fleet, guard = config.data, config.fleet, config.guard
    if data.name == IN_PYTHON or ":" in data.name:
        yield DIVIDING, "data of your own come divided over their devices"
        yield READING, "data of your own are read by code of your own"
    if "dirichlet" not in data.split:
        yield ("data.alpha",), f"data.split = {data.split} has no such number"
    if data.split != "dirichlet":
        yield ("data.min_samples",), f"data.split = {data.split} has no such number"
    if data.split != "shards":
        yield ("data.shards_per_device",), f"data.split = {data.split} has no shards"
    if fleet.profiles is not None:
        yield DRAWN, "the devices are those of fleet.profiles"
    if fleet.spread == "log-normal":
        yield (
            ("fleet.slowest_over_fastest",),
            "with fleet.spread = log-normal it is fleet.sigma that tells devices apart",
        )
    else:
        yield ("fleet.sigma",), f"fleet.spread = {fleet.spread} has no such number"
    if fleet.trace is not None:
        yield ("fleet.availability", "fleet.cycle"), "fleet.trace says when each device is there"
    if fleet.availability == 1:
        yield ("fleet.cycle",), "with fleet.availability = 1 devices are always there"
    if config.local.optimiser == "sgd":
        yield ("local.betas", "local.eps"), "local.optimiser = sgd has no such number"
    if config.evaluate.subset is None:
        yield ("evaluate.full_every",), "without evaluate.subset all evaluations are on all test examples"
    if guard.clip is None and guard.refuse is None:
        yield ("guard.window", "guard.after"), "without guard.clip and guard.refuse there is no guard"
    if not config.attack.share:
        yield ("attack.kind", "attack.factor"), "attack.share = 0, so that no device lies"
    if config.attack.kind == "sign-flip":
        yield ("attack.factor",), "a sign-flip has its own size"
    if not config.timing_only:
        yield ("data.per_device",), "it is for timing_only = true"


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _is_default(config: Config, key: str) -> bool:
    section, _, name = key.partition(".")
    return bool(_value(config, key) == type(getattr(config, section)).model_fields[name].default)


def _shown(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
