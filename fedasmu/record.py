"""The run directory: what a run leaves behind, and all that tables and pictures are computed from.

config.toml         the recipe, complete
fleet.csv           the devices' profiles
events.jsonl        every start, request, upload, loss and new version, with its virtual time
metrics.csv         one line an evaluation
model.safetensors   the final model
summary.json        the run in a few numbers, with the commit and the machine
checkpoint/         what `fedasmu resume` starts from
shelves/            vectors that a method keeps for every device, while the run goes on
.lock               the process that works on it, if one does
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedasmu import events
from fedasmu.errors import UserError
from fedasmu.events import COLUMNS, Event, Measured
from fedasmu.lock import LOCK, locked

SHELVES = "shelves"
BEFORE = {LOCK, "config.toml.part"}  # all that a run killed before it began leaves behind
OURS = BEFORE | {"config.toml", "fleet.csv", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json"}
OURS |= {"summary.json.part", "accuracy.png", "error.txt", "checkpoint", "failure", SHELVES}
COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Record:
    """The two growing files. They are cut back to what a checkpoint knew when a run is resumed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._events = self._open("events.jsonl")
        self._metrics = self._open("metrics.csv")

    def restart(self) -> None:
        """Begin both files anew: no checkpoint knows of anything in them."""
        self.restore({"events": 0, "metrics": 0})
        self._metrics.write((",".join(COLUMNS) + "\n").encode())

    def write(self, line: Event | Measured) -> None:
        """One line, in the file it belongs to."""
        if isinstance(line, Measured):
            self._metrics.write((",".join(map(str, line.row().values())) + "\n").encode())
            self._metrics.flush()
            return
        fields = events.line(line)
        try:
            text = COMPACT.encode(fields)
        except ValueError:  # JSON knows no infinity and no NaN
            text = COMPACT.encode({key: value if _is_plain(value) else str(value) for key, value in fields.items()})
        self._events.write(text.encode() + b"\n")

    def flush(self) -> None:
        """Let others read what is written so far."""
        self._events.flush()

    def state(self) -> dict[str, int]:
        """How long the files are, once all of it is on the disk."""
        for file in (self._events, self._metrics):
            file.flush()
            os.fsync(file.fileno())
        return {"events": self._events.tell(), "metrics": self._metrics.tell()}

    def restore(self, state: dict[str, int]) -> None:
        for file, length in ((self._events, state["events"]), (self._metrics, state["metrics"])):
            if file.seek(0, os.SEEK_END) < length:
                raise UserError(f"{file.name}: shorter than the checkpoint knows it; start again with --overwrite")
            file.seek(length)
            file.truncate()

    def close(self) -> None:
        self._events.close()
        self._metrics.close()

    def _open(self, name: str) -> BinaryIO:
        path = self.directory / name
        try:
            file = path.open("r+b" if path.exists() else "w+b", buffering=1 << 16)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        file.seek(0, os.SEEK_END)
        return file


def check_free(directory: Path, overwrite: bool) -> None:
    """A new run may begin here: there is nothing, or an earlier run that it is to replace."""
    with _named(directory):
        names = {path.name for path in directory.iterdir()} if directory.exists() else set()
        if names <= BEFORE:
            return
        if not overwrite:
            raise UserError(
                f"out = {directory}: there is something already; "
                "choose another (--out), go on with it (resume), or replace it (overwrite)"
            )
        if not ("config.toml" in names or names <= OURS):
            raise UserError(f"out = {directory}: not a run directory, so overwrite does not remove it")


@contextmanager
def claimed(directory: Path, resume: bool, overwrite: bool) -> Iterator[None]:
    """The directory is this run's alone, and empty if it is a new one."""
    with ExitStack() as held:
        with _named(directory):
            if not resume:
                check_free(directory, overwrite)  # once more: one may have begun there while the data were read
                directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(directory))
            if not resume:
                check_free(directory, overwrite)
                _empty(directory)
        yield


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


@contextmanager
def _named(directory: Path) -> Iterator[None]:
    """What the operating system refuses is the user's error, by the name of the directory."""
    try:
        yield
    except OSError as error:
        raise UserError(f"out = {directory}: cannot be written: {error.strerror}") from None


def _is_plain(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that a kill at any moment leaves the old one or the new one, never a part."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    temporary.replace(path)
