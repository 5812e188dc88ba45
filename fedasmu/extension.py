"""A finished run goes on: with a larger budget it ends in the bytes of a run that was that long from the start."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import tomli_w

from fedasmu.config import Config, Stop
from fedasmu.errors import UserError
from fedasmu.recipe import read
from fedasmu.record import SHELVES, write_whole


def longer(config: Config, uploads: int | None, time: float | None) -> Config:
    """The same experiment with a larger budget."""
    for key, wanted in (("uploads", uploads), ("time", time)):
        if wanted is not None and wanted < getattr(config.stop, key):
            raise UserError(f"{key} = {wanted}: the run has a budget of {getattr(config.stop, key)} already")
    stop = Stop(uploads=uploads or config.stop.uploads, time=time or config.stop.time)
    return config.model_copy(update={"stop": stop})


def recipe_of(directory: Path) -> Path:
    """The recipe that a run directory keeps."""
    path = directory / "config.toml"
    if not path.is_file():
        raise UserError(f"{directory}: nothing to resume there: it has no config.toml")
    return path


def extend(config: Config, directory: Path, say: Callable[[str], None]) -> None:
    """Give the run in this directory the budget of `config`; one that was finished is no longer, if that is larger."""
    path = recipe_of(directory)
    table = read(path)
    if Stop.model_validate(table.get("stop", {})) == config.stop:
        return
    # In this order: a kill in between leaves an unfinished run with its old budget, which is soon finished again.
    (directory / "summary.json").unlink(missing_ok=True)
    if not (directory / "checkpoint").is_dir() or config.algorithm.knows_budget:
        why = "depends on the budget" if config.algorithm.knows_budget else "did not keep how it ended"
        say(f"{directory}: begins anew, since it {why}; the result is that of a run of this length all the same")
        for folder in ("checkpoint", SHELVES):
            shutil.rmtree(directory / folder, ignore_errors=True)
    write_whole(path, tomli_w.dumps(table | {"stop": tomllib.loads(config.toml())["stop"]}))
