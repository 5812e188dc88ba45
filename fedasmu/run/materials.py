"""What a run is made from: the data on the devices, and the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedasmu import data as datasets
from fedasmu import models
from fedasmu.data import partition
from fedasmu.data.examples import Dataset
from fedasmu.data.federated import FederatedData
from fedasmu.data.places import no_directory
from fedasmu.errors import UserError
from fedasmu.imports import blame, load
from fedasmu.measure import IN_PYTHON
from fedasmu.models.architecture import check_signature
from fedasmu.models.initialise import seeded
from fedasmu.seeding import derive
from fedasmu.settings.config import Config, Data, ModelSettings


def check_own(settings: Data) -> None:
    """Data of the user's own are judged on what they bring: silently, that would be the test data."""
    if settings.held_out:
        raise UserError(
            f"data.held_out = {settings.held_out}: cannot hold out a part of data of your own; "
            "return your validation data as their test data"
        )


def federated_data(config: Config, say: Callable[[str], None]) -> tuple[FederatedData, dict[str, Any]]:
    """The data on their devices, and the options that a text model takes from them."""
    if ":" in config.data.name:
        check_own(config.data)
        return _own_data(config.data.name), {}
    dataset = _read(config.data, say)
    if dataset.overlapping and config.evaluate.on_devices:
        say(
            f"evaluate.on_devices = {config.evaluate.on_devices}: examples of {dataset.name} overlap, so that what a "
            "device measures on has readings that it trains on; the test data have none of them"
        )
    if config.data.held_out:
        kept, held_out = _held_out(dataset, config.data.held_out, derive(config.seed, "hold out"))
        users = None if dataset.users is None else dataset.users[kept]
        train, test = dataset.train.subset(kept), dataset.train.subset(held_out)
        dataset = replace(dataset, train=train, test=test, users=users)
    try:
        parts = _split(config, dataset, derive(config.seed, "split"))
    except ValueError as error:
        raise UserError(f"data.split = {config.data.split!r}: {error}") from None
    if parts.note:
        say(f"the split was repaired: {parts.note}")
    words: dict[str, Any] = {"vocabulary": len(dataset.words)} if dataset.words else {}
    if dataset.vectors is not None:
        words |= {"pretrained": dataset.vectors, "embedding": dataset.vectors.shape[1]}
    return FederatedData(dataset.name, dataset.train, dataset.test, parts, dataset.classes, words=dataset.words), words


def _held_out(dataset: Dataset, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """What is trained on, and what is held out to tune on."""
    if dataset.overlapping and dataset.users is not None:
        return partition.hold_out_last(dataset.train.targets, dataset.users, share)
    return partition.hold_out(dataset.train.targets, share, seed)


def expected_data(settings: Data) -> tuple[tuple[int, ...], int, dict[str, Any]]:
    """What is known without reading anything: the shape of an input, the classes, the options of a text model."""
    try:
        known = datasets.describe(settings.name)
    except datasets.DataError:  # a user's own: only the order of events is asked for, so any data will do
        known = datasets.describe("fashion-mnist")
    if known.text:
        return (settings.length,), known.classes, {"vocabulary": settings.vocabulary}
    return known.shape, known.classes, {}


def _read(settings: Data, say: Callable[[str], None]) -> Dataset:
    if settings.dir is not None and (what := no_directory(settings.dir)):
        raise UserError(f"data.dir = {settings.dir}: {what}")
    options = {name: getattr(settings, name) for name in ("vocabulary", "length", "padding", "truncation")}
    text = datasets.TextOptions(**options, glove=None if settings.glove is None else str(settings.glove))
    if settings.name == "huggingface":
        from fedasmu.data.huggingface import from_disk

        if settings.dir is None:
            raise UserError("data.dir is missing: the folder that save_to_disk wrote")
        return from_disk(settings.dir, **settings.columns.model_dump(), text=text)
    try:
        datasets.describe(settings.name)
    except UserError as error:
        raise UserError(f"data.name: {error}") from None
    download = settings.download and settings.fallback is None
    dataset = datasets.load(settings.name, settings.dir, download=download, fallback=settings.fallback, text=text)
    if dataset.name.startswith(f"{settings.name}-{dataset.classes}-of-"):
        say(f"{settings.name}: {dataset.classes} of its classes are here, so this is {dataset.name}")
    elif dataset.name != settings.name:
        say(f"{settings.name} is not here: using {dataset.name} (`fedasmu data prepare {settings.name}` gets it)")
    say(f"data from {dataset.folder}")
    for line in passed_over(settings.name, dataset.folder, settings.dir):
        say(line)
    return dataset


def passed_over(name: str, folder: str, directory: Path | None) -> list[str]:
    """What there is to say of the folders that a user named, where this data set was read from another one.

    FEDASMU_DATA is for all data sets: that it has nothing of this one is no news.
    """
    if datasets.describe(name).embedded:
        return []
    shared = os.environ.get("FEDASMU_DATA", "")
    wrong = no_directory(Path(shared)) if shared else ""
    parts = [look.folder for look in datasets.where(name, directory) if look.partial]
    named = [] if directory is None else [str(directory)]
    named += [shared] if shared and any(_lies_in(part, shared) for part in parts) else []
    elsewhere = [place for place in named if not _lies_in(folder, place)]
    lines = [f"{place} does not hold all of {name}, so it was passed over" for place in elsewhere]
    return [*lines, f"FEDASMU_DATA = {shared}: {wrong}, so it was passed over"] if wrong else lines


def _lies_in(folder: str | Path, place: str) -> bool:
    """Also where either of them is reached by a link."""
    place, ways = os.path.expanduser(place), (os.path.abspath, os.path.realpath)
    return any(Path(one(folder)).is_relative_to(other(place)) for one in ways for other in ways)


def _own_data(path: str) -> FederatedData:
    try:
        function = load(path)
    except ValueError as error:
        raise UserError(f"data.name = {path!r}: {error}") from None
    try:
        data = function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"data.name = {path!r} failed: {blame(error)}") from error
    if not isinstance(data, FederatedData):
        raise UserError(f"data.name = {path!r}: must return a fedasmu.FederatedData, not {type(data).__name__}")
    return data


def _split(config: Config, dataset: Dataset, seed: int) -> partition.Parts:
    settings, devices, targets = config.data, config.fleet.devices, dataset.train.targets
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
    given = "devices" in config.fleet.model_fields_set
    return partition.by_user(dataset.users, devices if given else None, seed)


def check_name(settings: ModelSettings) -> None:
    """That it is a model's: before the data are read, which may take a while."""
    if ":" not in settings.name:
        try:
            models.architecture(settings.name)
        except ValueError as error:
            raise UserError(f"model.name: {error}") from None


def network(
    settings: ModelSettings,
    factory: Callable[[], nn.Module] | None,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    words: Mapping[str, Any],
) -> nn.Module:
    """The model with its initial weights, which depend on the seed alone, and on word vectors if there are any."""
    seed = derive(seed, "weights")
    if factory is not None:
        try:
            check_signature(getattr(factory, "__qualname__", str(factory)), factory, {})
        except ValueError as error:
            raise UserError(f"model: {error}; give what can be, as in model=lambda: Net(10)") from None
        with seeded(seed):
            module = factory()
        if not isinstance(module, nn.Module):
            raise UserError(f"model: the factory gave a {type(module).__name__}, not a torch.nn.Module")
        return module
    options = settings.options
    if taken := sorted(options.keys() & {"shape", "classes", "seed"}):
        raise UserError(f"model.{taken[0]}: not an option of a model; the data and the recipe's seed decide it")
    try:
        offered = words.keys() & models.option_names(settings.name)
        given, needed = options.get("vocabulary"), words.get("vocabulary", 0)
        if "vocabulary" in offered and isinstance(given, int) and given < needed:
            raise UserError(
                f"model.vocabulary = {given}: the data have {needed} words; leave it out, and set data.vocabulary"
            )
        options = {**{name: words[name] for name in offered}, **options}
        return models.build(settings.name, shape=shape, classes=classes, seed=seed, **options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"model.name = {settings.name!r}: {error}") from None
    except Exception as error:  # of a user's own, or more memory than there is
        raise UserError(f"model.name = {settings.name!r} failed: {blame(error)}") from error


def finished_network(recipe: Mapping[str, Any], weights: Mapping[str, Tensor], module: nn.Module | None) -> nn.Module:
    """A run's network with its final weights: built by its name, or one of the user's own to be filled."""
    settings = ModelSettings.model_validate(recipe["model"])
    if module is None:
        if settings.name == IN_PYTHON or ":" in settings.name or recipe["data"]["name"] not in datasets.NAMES:
            raise UserError("this run's model or data are your own: give a module of its kind, as in model(MyNet())")
        shape, classes, words = expected_data(Data.model_validate(recipe["data"]))
        module = network(settings, None, shape, classes, 0, words)
    try:
        missing = module.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        raise UserError(f"the weights do not fit: {error}") from None
    counters = {name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
    if missing.unexpected_keys or set(missing.missing_keys) - counters:
        raise UserError(f"the weights do not fit: {missing}")
    return module.eval()
