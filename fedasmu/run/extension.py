"""A finished run goes on: with a larger budget it ends in the bytes of a run that was that long from the start."""

from __future__ import annotations

import math
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from fedasmu.errors import UserError
from fedasmu.run.result import flat
from fedasmu.settings.config import WITHOUT_INFLUENCE, Config, Stop
from fedasmu.settings.recipe import read
from fedasmu.storage.record import SERVED, SHELVES
from fedasmu.system.disk import write_whole


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
    if (directory / SERVED).exists():
        raise UserError(f"{directory}: its devices are real; go on with fedasmu serve --resume {directory}")
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


def check_settings(config: Config, state: Any, directory: Path) -> None:
    """The second half of a run has the settings of the first; only its budget may have grown."""
    try:
        began, now = (flat(tomllib.loads(text)) for text in (state["config"], config.toml()))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{directory}: its checkpoint does not say what run it is of ({error})") from None
    grown = () if config.algorithm.knows_budget else ("stop.uploads", "stop.time")
    for key in sorted({*began, *now} - WITHOUT_INFLUENCE):
        if began.get(key) != now.get(key) and not (key in grown and now.get(key, math.inf) >= began.get(key, math.inf)):
            raise UserError(
                f"{directory / 'config.toml'}: {key} is {now.get(key)!r}, and was {began.get(key)!r} when the run was "
                "saved: put it back, or start it again (overwrite)"
            )
