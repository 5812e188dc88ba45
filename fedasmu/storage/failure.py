"""A device's failed computation on disk, so that it can be repeated alone, in one process, under a debugger."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedasmu.encoding.codec import WORDS
from fedasmu.errors import UserError
from fedasmu.models.contrast import Contrast
from fedasmu.protocol import Computation, Evaluate, Probe, Train
from fedasmu.storage import checkpoint

FOLDER = "failure"
COMPUTATIONS = {**WORDS, "Contrast": Contrast}  # nothing else is ever made of what a run directory says


def save(command: Any, device: int, seed: int, run: Path) -> None:
    """Keep what failed. A command with something of the user's own that JSON cannot hold is not kept."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    with suppress(TypeError):
        checkpoint.write({"command": command, "device": device, "seed": seed}, run / FOLDER, COMPUTATIONS)


def read(run: Path) -> tuple[Computation, int, int]:
    """The command, the device and the seed of the computation that failed in this run."""
    if not (run / FOLDER).is_dir():
        raise UserError(f"{run}: no computation has failed there")
    try:
        state = checkpoint.read(run / FOLDER, COMPUTATIONS)
    except ValueError as error:
        raise UserError(str(error)) from None
    match state:
        case {"command": Train() | Probe() | Evaluate() as command, "device": int(device), "seed": int(seed)}:
            return command, device, seed
    raise UserError(f"{run / FOLDER}: not a computation that failed")
