"""One process at a time works in a run directory.

The lock is the process's own: the system gives it back when the process ends, however it ends, and a worker that
outlives its parent does not hold it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedasmu.errors import UserError

LOCK = ".lock"
_held: set[Path] = set()  # by this process, which the system would let in twice


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else works in this directory meanwhile. A UserError if somebody does."""
    place = directory.resolve()
    if place in _held:
        raise UserError(f"{directory}: this process is working on it already")
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            who = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise UserError(f"{directory}: another process (pid {who}) is working on it") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(place)
        try:
            yield
        finally:
            _held.discard(place)
    finally:
        os.close(descriptor)


def check_idle(directory: Path) -> None:
    """Refuse early, where a lock that was left behind can be told from one that is held."""
    if (directory / LOCK).is_file():
        with locked(directory):
            pass
