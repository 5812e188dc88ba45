"""Files that are whole or not there, and on the disk when we say so: also after a power cut."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MANY = 16  # files: for fewer than these the rest of a file system is not made to wait


def sync(path: Path) -> None:
    """What was written to this file, or which names this directory has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(directory: Path, names: Sequence[str]) -> None:
    """What was written to these files of a directory is on the disk.

    Each waits for the disk, so that thousands take many seconds. Where the system can, many are waited for at once,
    together with whatever else its file system has to write.
    """
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None) if len(names) > MANY else None
    if syncfs is not None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) == 0:
                return
        finally:
            os.close(descriptor)
    for name in names:
        sync(directory / name)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A place to write a file's new content to: a kill at any moment leaves the old one or the new one, never a part.

    Where there is a link, it is the link that is replaced, and not what it leads to.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    yield temporary
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def write_whole(path: Path, text: str) -> None:
    with replaced(path) as temporary:
        temporary.write_text(text)


def append_whole(path: Path, lines: Callable[[bool], str]) -> None:
    """At the end of a file, which is told to be new or not: all of these lines or, where there is no room, none."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        data = lines(not before).encode()
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(before)
            raise


def write_private(path: Path, data: bytes) -> None:
    """The same, for the eyes of its owner only."""
    with replaced(path) as temporary:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)


def not_through_links(path: str, flags: int) -> int:
    """For `open(..., opener=)`: a link that somebody put there is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
