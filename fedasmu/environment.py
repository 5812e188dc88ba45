"""From settings to the world of a run: the data on the devices, the fleet, and the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedasmu import data as datasets
from fedasmu import models
from fedasmu.config import Config, Data, FleetSettings, Network
from fedasmu.data import partition
from fedasmu.data.examples import Dataset
from fedasmu.data.federated import FederatedData
from fedasmu.errors import UserError
from fedasmu.imports import load
from fedasmu.models.initialise import seeded
from fedasmu.seeding import derive
from fedasmu.simulation.fleet import Always, Availability, Cycle, Fleet, Trace, draw_profiles, read_profiles


def federated_data(config: Config, say: Callable[[str], None]) -> FederatedData:
    """Read the data set, set aside what is held out, and split the rest over the devices."""
    settings = config.data
    if ":" in settings.name:
        return _own_data(settings.name)
    download = settings.download and settings.fallback is None
    dataset = datasets.load(settings.name, settings.dir, download=download, fallback=settings.fallback)
    if dataset.name != settings.name:
        say(f"{settings.name} is not here: using {dataset.name} (`fedasmu data prepare {settings.name}` gets it)")
    train, test, users = dataset.train, dataset.test, dataset.users
    if settings.held_out:
        kept, held_out = partition.hold_out(train.targets, settings.held_out, derive(config.seed, "hold out"))
        test = train.subset(held_out)
        train, users = train.subset(kept), None if users is None else users[kept]
        dataset = Dataset(dataset.name, train, test, dataset.classes, users)
    try:
        parts = _split(settings, dataset, config.fleet.devices, derive(config.seed, "split"))
    except ValueError as error:
        raise UserError(f"data.split = {settings.split!r}: {error}") from None
    return FederatedData(dataset.name, train, test, parts, dataset.classes)


def _own_data(path: str) -> FederatedData:
    try:
        data = load(path)()
    except ValueError as error:
        raise UserError(f"data.name = {path!r}: {error}") from None
    if not isinstance(data, FederatedData):
        raise UserError(f"data.name = {path!r}: must return a fedasmu.FederatedData, not {type(data).__name__}")
    return data


def _split(settings: Data, dataset: Dataset, devices: int, seed: int) -> partition.Parts:
    targets = dataset.train.targets
    if settings.split == "dirichlet":
        return partition.dirichlet(targets, devices, settings.alpha, seed, settings.min_samples)
    if settings.split == "equal-dirichlet":
        return partition.equal_dirichlet(targets, devices, settings.alpha, seed)
    if settings.split == "iid":
        return partition.iid(targets, devices, seed)
    if settings.split == "shards":
        return partition.shards(targets, devices, settings.shards_per_device, seed)
    if dataset.users is None:
        raise ValueError(f"{dataset.name} does not know who its examples come from; use another split")
    return partition.by_user(dataset.users)


def fleet(settings: FleetSettings, seed: int) -> Fleet:
    if settings.profiles is not None:
        profiles = read_profiles(settings.profiles)
        if len(profiles) != settings.devices:
            raise UserError(f"fleet.profiles has {len(profiles)} devices, but there are {settings.devices} in all")
    else:
        names = (
            "spread",
            "slowest_over_fastest",
            "seconds_per_sample",
            "down_mbps",
            "up_mbps",
            "link_spread",
            "latency",
        )
        drawn: dict[str, Any] = {name: getattr(settings, name) for name in names}
        try:
            profiles = draw_profiles(settings.devices, seed, **drawn)
        except ValueError as error:
            raise UserError(f"fleet: {error}") from None
    availability: Availability = Always()
    if settings.trace is not None:
        availability = Trace.read(settings.trace)
    elif settings.availability < 1:
        availability = Cycle(settings.availability, settings.cycle, seed)
    return Fleet(profiles, seed, settings.jitter, settings.dropout, availability)


def network(
    settings: Network, factory: Callable[[], nn.Module] | None, shape: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """The model with its initial weights, which depend on the seed alone."""
    seed = derive(seed, "weights")
    if factory is not None:
        with seeded(seed):
            module = factory()
        if not isinstance(module, nn.Module):
            raise UserError(f"model: the factory gave a {type(module).__name__}, not a torch.nn.Module")
        return module
    try:
        return models.build(settings.name, shape=shape, classes=classes, seed=seed, **settings.options)
    except ValueError as error:
        raise UserError(f"model.name = {settings.name!r}: {error}") from None
