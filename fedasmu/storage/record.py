"""The run directory: what a run leaves behind, and all that tables and pictures are computed from.

config.toml         the recipe, complete
fleet.csv           the devices' profiles
events.jsonl        every start, request, upload, loss and new version, with its virtual time
metrics.csv         one line an evaluation
wall.csv            when each of these lines came to be, by the clock on the wall
model.safetensors   the final model
summary.json        the run in a few numbers, with the commit and the machine
checkpoint/         what `fedasmu resume` starts from
shelves/            vectors that a method keeps for every device, while the run goes on
.lock               the process that works on it, if one does
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from fedasmu import events
from fedasmu.errors import UserError
from fedasmu.events import Event, Measured, columns
from fedasmu.system.disk import not_through_links
from fedasmu.system.lock import LOCK, locked

SHELVES = "shelves"
SERVED = "network.json"  # there if the devices are real ones
SCRIPT = "simulated"  # there, too, if they play the order and the times of a simulation: the run directory of that
SAME_BYTES = ("events.jsonl", "metrics.csv", "model.safetensors")  # whenever the recipe, its seed and the machine are
TOGETHER = 500  # lines that are written at once, at the latest
NOTHING = {"length": 0, "sha256": sha256().hexdigest()}
BEFORE = {LOCK, "config.toml.part"}  # all that a run killed before it began leaves behind
OURS = BEFORE | {"config.toml", "fleet.csv", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json"}
OURS |= {"wall.csv", "summary.json.part", "accuracy.png", "curve.png", "error.txt", "checkpoint", "failure", SHELVES}


def differing(one: Path, other: Path) -> list[str]:
    """The files of two runs that should be byte-identical and are not."""
    return [name for name in SAME_BYTES if (one / name).read_bytes() != (other / name).read_bytes()]


class Record:
    """The two growing files. They are cut back to what a checkpoint knew when a run is resumed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._events = _Growing(directory / "events.jsonl")
        self._metrics = _Growing(directory / "metrics.csv")

    def restart(self, metric: str = "accuracy") -> None:
        """Begin both files anew: no checkpoint knows of anything in them."""
        self.restore({"events": NOTHING, "metrics": NOTHING})
        self._metrics.add(",".join(columns(metric)))

    def write(self, line: Event | Measured) -> None:
        """One line, in the file it belongs to."""
        if isinstance(line, Measured):
            self._metrics.add(",".join(map(str, line.row().values())))
            self._metrics.flush()
            return
        self._events.add(events.text(line))

    def flush(self) -> None:
        """Let others read what is written so far."""
        self._events.flush()

    def state(self) -> dict[str, Any]:
        """How long the files are and what is in them, once all of it is on the disk."""
        return {"events": self._events.state(), "metrics": self._metrics.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._events.restore(state["events"])
        self._metrics.restore(state["metrics"])

    def close(self) -> None:
        self._events.close()
        self._metrics.close()


class _Growing:
    """A file to which lines are added, with the digest of all that is in it.

    Lines are written many at a time: each alone would cost as much as making it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = not_through_links(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            self._file: BinaryIO = os.fdopen(descriptor, "r+b", buffering=1 << 16)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        self._digest = sha256()
        self._lines: list[str] = []  # not yet in the file
        self._file.seek(0, os.SEEK_END)

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            data = "\n".join([*self._lines, ""]).encode()
            self._lines.clear()
            self._file.write(data)
            self._digest.update(data)
        self._file.flush()

    def state(self) -> dict[str, Any]:
        self.flush()
        os.fsync(self._file.fileno())
        return {"length": self._file.tell(), "sha256": self._digest.hexdigest()}

    def restore(self, state: dict[str, Any]) -> None:
        """Cut back to what a checkpoint knew. A UserError if what was written until then has changed since."""
        self._lines.clear()
        self._file.seek(0)
        kept = self._file.read(state["length"])
        self._digest = sha256(kept)
        if self._digest.hexdigest() != state["sha256"]:
            raise UserError(
                f"{self.path}: not what the run had written when it was saved (changed or cut short since); "
                "start it again (overwrite)"
            )
        self._file.seek(len(kept))
        self._file.truncate()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()


def check_free(directory: Path, overwrite: bool) -> None:
    """A new run may begin here: there is nothing, or an earlier run that it is to replace."""
    with _named(directory):
        check_writable(directory)
        _check_apart(directory)
        names = {path.name for path in directory.iterdir()} if directory.exists() else set()
        if names <= BEFORE:
            return
        if not overwrite:
            again = f"`fedasmu serve --resume {directory}`" if SERVED in names else "resume"
            raise UserError(
                f"out = {directory}: there is something already; "
                f"choose another (out), go on with it ({again}), or replace it (overwrite)"
            )
        if not ("config.toml" in names or names <= OURS):
            raise UserError(f"out = {directory}: not a run directory, so overwrite does not remove it")


def check_writable(directory: Path) -> None:
    """What can be known of that before there is something to write."""
    with _named(directory):
        nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def make_folder(directory: Path) -> None:
    """A folder to write into that is no run's, if it is not there yet."""
    check_writable(directory)
    with _named(directory):
        directory.mkdir(parents=True, exist_ok=True)


def _check_apart(directory: Path) -> None:
    """A run inside another one's directory would be removed with it."""
    for parent in directory.absolute().parents:
        if (parent / "config.toml").is_file() and (parent / "metrics.csv").is_file():
            raise UserError(f"out = {directory}: is inside of another run, {parent}; choose another (out)")


@contextmanager
def claimed(directory: Path, resume: bool, overwrite: bool) -> Iterator[None]:
    """The directory is this run's alone, and empty if it is a new one."""
    with ExitStack() as held:
        with _named(directory):
            if not resume:
                check_free(directory, overwrite)  # once more: one may have begun there while the data were read
                directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(directory))
            _check_links(directory)
            if not resume:
                check_free(directory, overwrite)
                _empty(directory)
        yield


def _check_links(directory: Path) -> None:
    """What we write and remove is here, and not where a link in a directory from elsewhere leads."""
    for name in (*sorted(OURS), f"{SHELVES}/server", f"{SHELVES}/devices"):
        if (directory / name).is_symlink():
            raise UserError(f"{directory / name}: a link; a run directory has none, and nothing beyond it is touched")


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
