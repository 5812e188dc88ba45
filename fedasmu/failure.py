"""A device's failed computation on disk, so that it can be repeated alone, in one process, under a debugger."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedasmu import checkpoint
from fedasmu.errors import UserError
from fedasmu.imports import load

FOLDER = "failure"


def save(command: Any, device: int, seed: int, run: Path) -> None:
    """Keep what failed. A command with something of the user's own that JSON cannot hold is not kept."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    with suppress(TypeError):
        checkpoint.write({"command": _describe(command), "device": device, "seed": seed}, run / FOLDER)


def read(run: Path) -> tuple[Any, int, int]:
    """The command, the device and the seed of the computation that failed in this run."""
    if not (run / FOLDER).is_dir():
        raise UserError(f"{run}: no computation has failed there")
    try:
        state = checkpoint.read(run / FOLDER)
        return _rebuild(state["command"]), state["device"], state["seed"]
    except ValueError as error:
        raise UserError(str(error)) from None


def _describe(value: Any) -> Any:
    if isinstance(value, range):
        return {"range": [value.start, value.stop]}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        inner = {field.name: _describe(getattr(value, field.name)) for field in fields(value)}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": inner}
    return value


def _rebuild(value: Any) -> Any:
    if isinstance(value, dict) and "range" in value:
        return range(*value["range"])
    if isinstance(value, dict) and "class" in value:
        return load(value["class"])(**{name: _rebuild(inner) for name, inner in value["fields"].items()})
    return value
