"""A finished run goes on: with a larger budget it ends in the bytes of a run that was that long from the start."""

from __future__ import annotations

import math
import shutil
import tomllib
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from torch import Tensor

from fedasmu import data as datasets
from fedasmu.data.federated import FederatedData
from fedasmu.errors import UserError
from fedasmu.measure import IN_PYTHON
from fedasmu.run.result import flat
from fedasmu.run.start import start_of, with_fleet, with_weights
from fedasmu.settings.config import WITHOUT_INFLUENCE, Config, Stop
from fedasmu.settings.fleets import FLEET_FILES
from fedasmu.settings.recipe import parse, read
from fedasmu.storage.record import SERVED, SHELVES, claimed
from fedasmu.system.disk import write_whole

BUDGETS = ("stop.uploads", "stop.time")


def longer(config: Config, uploads: int | None, time: float | None) -> Config:
    """The same experiment with a larger budget."""
    if uploads is not None and not isinstance(uploads, Integral):
        raise UserError(f"uploads = {uploads!r}: must be a whole number")
    if time is not None and not isinstance(time, Real):
        raise UserError(f"time = {time!r}: must be a number")
    for key, wanted in (("uploads", uploads), ("time", time)):
        if wanted is not None and wanted < getattr(config.stop, key):
            most = getattr(config.stop, key)
            already = f"has a budget of {most} already" if math.isfinite(most) else "is not limited by it"
            raise UserError(f"{key} = {wanted}: the run {already}")
    stop = Stop(uploads=int(uploads or config.stop.uploads), time=float(time or config.stop.time))
    return config.model_copy(update={"stop": stop})


def recipe_of(directory: Path) -> Path:
    """The recipe that a run directory keeps."""
    path = directory / "config.toml"
    if not path.is_file():
        inner = next((run for depth in ("*", "*/*", "*/*/*") for run in directory.glob(f"{depth}/config.toml")), None)
        if inner is not None:
            raise UserError(
                f"{directory}: not a run, but a folder of them: the command that began them goes on with all; "
                f"resume goes on with one, as in {inner.parent}"
            )
        raise UserError(f"{directory}: nothing to resume there: it has no config.toml")
    if (directory / SERVED).exists():
        raise UserError(f"{directory}: its devices are real; go on with fedasmu serve --resume {directory}")
    return path


def is_done(
    config: Config, directory: Path, data: FederatedData | None = None, weights: Mapping[str, Tensor] | None = None
) -> bool:
    """Whether the run in this directory is finished, with no smaller budget. Any other difference is refused.

    `data` and `weights` are those given in Python.
    """
    recipe_of(directory)
    with claimed(directory, resume=True, overwrite=False):
        return not _grows(config, directory, data, weights) and (directory / "summary.json").exists()


def extend(
    config: Config,
    directory: Path,
    say: Callable[[str], None],
    data: FederatedData | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Give the run in this directory the budget of `config`; one that was finished is no longer, if that is larger."""
    if not _grows(config, directory, data, weights):
        return
    path = recipe_of(directory)
    table = read(path)
    # In this order: a kill in between leaves an unfinished run with its old budget, which is soon finished again.
    (directory / "summary.json").unlink(missing_ok=True)
    if not (directory / "checkpoint").is_dir() or config.algorithm.knows_budget:
        why = "depends on the budget" if config.algorithm.knows_budget else "did not keep how it ended"
        say(f"{directory}: begins anew, since it {why}; the result is that of a run of this length all the same")
        for folder in ("checkpoint", SHELVES):
            shutil.rmtree(directory / folder, ignore_errors=True)
    write_whole(path, tomli_w.dumps(table | {"stop": tomllib.loads(config.toml())["stop"]}))


def _grows(config: Config, directory: Path, data: FederatedData | None, weights: Mapping[str, Tensor] | None) -> bool:
    """Whether the budget of `config` is larger. Refuses any other difference, before anything is changed."""
    path = recipe_of(directory)
    there = _recorded(read(path), config, path)
    wanted = _as_begun(config, data, weights)
    for key in differences(there, wanted):
        _check_grown(key, there, wanted, path)
    return there.stop != config.stop


def read_here(config: Config) -> Config:
    """The recipe by the name of the data that it would read now; where times alone are asked for, it reads none."""
    data = config.data
    reads = data.fallback is not None and not config.timing_only
    return config.on(datasets.here(data.name, data.dir)) if reads else config


def differences(there: Config, wanted: Config) -> list[str]:
    """The settings in which two runs differ, as far as they can change a result."""
    old, new = (flat(tomllib.loads(config.toml())) for config in (there, wanted))
    decided = {"fleet.devices"} if wanted.data.split == "user" or ":" in wanted.data.name else set()  # by the data
    return [key for key in _differing(old, new) if key not in decided]


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Of a fleet's file its digest counts; of a run that is older than these, where it was."""
    files = {f"fleet.{key}" for key in FLEET_FILES}
    ignored = {key if f"{key}_sha256" in old else f"{key}_sha256" for key in files} | WITHOUT_INFLUENCE
    return sorted(key for key in {*old, *new} - ignored if old.get(key) != new.get(key))


def _recorded(table: dict[str, Any], config: Config, path: Path) -> Config:
    """The settings in a run directory. Code that they name is not loaded: it is the experiment's own, or refused."""
    method = table.get("algorithm")
    name = method.get("name") if isinstance(method, Mapping) else method
    if name != config.algorithm.name:
        raise _other(path, "algorithm.name", name, config.algorithm.name)
    if isinstance(method, Mapping) and ":" in str(name):
        own = type(config.algorithm)
        try:
            table = table | {"algorithm": own.model_validate({**method, "name": own.names()[0]})}
        except ValidationError as error:
            key, told = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            raise UserError(f"{path}: algorithm.{key}: {told}") from None
    return parse(table, str(path))


def _as_begun(config: Config, data: FederatedData | None, weights: Mapping[str, Tensor] | None) -> Config:
    """The settings as a run that begins with them writes them down. What it vouches for already is not read."""
    if config.model.weights_sha256 is None:
        config = with_weights(config, start_of(config.model, weights))
    if not config.fleet.is_vouched_for:
        config = with_fleet(config)
    if data is not None and config.data.name == IN_PYTHON and not config.timing_only:
        config = config.model_copy(update={"fleet": config.fleet.model_copy(update={"devices": len(data.shards)})})
    return read_here(config)


def _check_grown(key: str, there: Config, wanted: Config, path: Path) -> None:
    """A budget may differ if it is larger; nothing else may."""
    old, new = (flat(tomllib.loads(config.toml())).get(key) for config in (there, wanted))
    if key not in BUDGETS:
        raise _other(path, key, old, new)
    if (math.inf if new is None else new) < (math.inf if old is None else old):
        has = "no such limit" if old is None else f"a budget of {old} already"
        raise UserError(
            f"{key} = {new}: {path.parent} has {has}; resume it with no less, or start it again (overwrite)"
        )


def _other(path: Path, key: str, there: Any, wanted: Any) -> UserError:
    return UserError(
        f"{path}: {key} is {there!r}, not {wanted!r}: resume it with its own settings, where only stop may be larger, "
        "or start it again (overwrite)"
    )


def check_settings(config: Config, state: Any, directory: Path) -> None:
    """The second half of a run has the settings of the first; only its budget may have grown."""
    try:
        began, now = (flat(tomllib.loads(text)) for text in (state["config"], config.toml()))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{directory}: its checkpoint does not say what run it is of ({error})") from None
    grown = () if config.algorithm.knows_budget else BUDGETS
    for key in _differing(began, now):
        if not (key in grown and now.get(key, math.inf) >= began.get(key, math.inf)):
            raise UserError(
                f"{directory / 'config.toml'}: {key} is {now.get(key)!r}, and was {began.get(key)!r} when the run was "
                "saved: put it back, or start it again (overwrite)"
            )


def check_data(data: str | None, state: Mapping[str, Any], directory: Path) -> None:
    """The second half of a run is trained on the data of the first: these may come from a program, or files change."""
    if state.get("data", data) != data:  # one that was saved by an older version does not know
        raise UserError(
            f"{directory}: its data are not those that it was begun with: give it the same, in the same order, or "
            "start it again (overwrite)"
        )
