"""The ledger: every call made to the server, in order, on the disk before anybody is told of what came of it.

Appending is one write by the event loop. One thread brings what was written to the disk; whoever wants to reply waits
until everything written so far is there, so many replies share one fdatasync. Space is allocated ahead: a full disk
shows before an act is written, and leaves room for small ones.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedasmu.network import failpoint
from fedasmu.network.segment import Act, Damaged, Segment, opening, packed
from fedasmu.system.disk import replaced, sync
from fedasmu.system.process import one_worker

STEP = 16 << 20  # bytes allocated ahead
RESERVE = 1 << 20  # kept for acts without a body when the disk is full
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(Exception):
    """There is no room for this act. Nothing was written."""


def is_full(error: BaseException | None) -> bool:
    """Whether it is the disk that has no room, and nothing worse."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in FULL)


def die(error: OSError) -> None:
    """After a failed fsync nobody knows what is on the disk: only a restart, which reads it, can tell."""
    print(f"error: the disk failed ({error.strerror}); start again with --resume", file=sys.stderr, flush=True)
    os._exit(1)


class Ledger:
    def __init__(
        self,
        directory: Path,
        table: dict[str, Any],
        *,
        step: int = STEP,
        reserve: int = RESERVE,
        failed: Callable[[OSError], None] = die,
    ) -> None:
        """Open a folder of segments, or begin one. The table (run, versions) opens every segment that is written."""
        self.directory, self.table, self.step, self.reserve, self._failed = directory, table, step, reserve, failed
        directory.mkdir(parents=True, exist_ok=True)
        self._thread = one_worker("fdatasync")
        self._switching = threading.Lock()  # a file is not closed while the other thread brings it to the disk
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # until so many acts are there
        self._flusher: asyncio.Task[None] | None = None
        self.next = 0  # the number of the act that comes next
        self.size = 0  # bytes of acts in the segment that is written to
        self.full = False
        self._last: Segment | None = None  # as it was found, until something is added to it
        if found := segments(directory):
            self._go_on(*found[-1])
        else:
            self._take(*self._begun())

    def append(self, act: Act) -> int:
        """Write an act; the number returned is its own. It is not on the disk before `durable` says so."""
        parts = packed(act, self._synced, self._salt)
        length = sum(map(len, parts))
        self._make_room(length + (self.reserve if act.body else 0))
        failpoint.reach("ledger.write")
        try:
            written = os.pwritev(self._file, parts, self._end)
        except OSError as error:
            raise self._refused(error) from None
        if written != length:
            raise self._refused(OSError(errno.ENOSPC, "a short write"))
        failpoint.reach("ledger.written")
        self._last = None
        self._end += length
        self.size += length
        self.next += 1
        return self.next - 1

    def probe(self) -> bool:
        """Whether there is room again for acts with a body."""
        try:
            self._make_room(2 * self.reserve)
        except DiskFull:
            return False
        self.full = False
        return True

    async def durable(self) -> None:
        """Wait until everything appended so far is on the disk."""
        if self._durable >= self.next:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append((self.next, waiter))
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        await waiter

    def sync(self) -> None:
        """The same without an event loop: when a run begins, ends or is recovered."""
        self._bring()

    def replay(self, first: int, only: str | None = None) -> Iterator[tuple[int, Act]]:
        """The acts from this number on, each with its own: all of them, or those of one kind."""
        found = segments(self.directory)
        if found[0][0] > first:
            raise Damaged(f"{self.directory}: the acts from {first} on are needed, but {found[0][1].name} is first")
        ends = [start for start, _ in found[1:]] + [self.next]
        for (start, path), end in zip(found, ends, strict=True):
            if end > first:
                segment = self._segment(path)
                if start + len(segment.contents.acts) != end:
                    raise Damaged(
                        f"{path}: acts are missing after it or at its end; bring the ledger back from a backup"
                    )
                yield from ((start + number, act) for number, act in segment.acts(max(first - start, 0), only))

    def skipped(self, first: int) -> set[int]:
        """The acts from this number on that are not to be applied."""
        return {act.head["act"] for _, act in self.replay(first, only="skip")}

    def rotate(self) -> int:
        """Begin a new segment. The number returned is that of its first act: what a checkpoint is followed by."""
        self.sync()
        begun = self._begun()  # on a full disk it fails here, and the segment that there is goes on
        with self._switching:
            try:
                os.ftruncate(self._file, self._end)
                os.fsync(self._file)
            except OSError as error:  # the new one is there already: nothing may follow in this one
                self._failed(error)
                raise
            os.close(self._file)
            self._take(*begun)
        return self.next

    def prune(self, before: int) -> None:
        """Remove the segments that hold no act from this number on."""
        for (_, path), (following, _) in pairwise(segments(self.directory)):
            if following <= before:
                path.unlink()
        failpoint.reach("ledger.pruned")
        sync(self.directory)

    def close(self) -> None:
        self._thread.shutdown()
        self.sync()
        os.ftruncate(self._file, self._end)
        os.close(self._file)

    def _begun(self) -> tuple[int, int, int]:
        """A new segment, for what comes next: its file, where its acts begin, and its secret number."""
        salt = secrets.randbits(32)
        path = self.directory / f"{self.next:012d}.log"
        text = opening({**self.table, "salt": salt})
        try:
            with replaced(path) as part:
                part.write_bytes(text)
            return os.open(path, os.O_RDWR), len(text), salt
        except OSError:
            path.unlink(missing_ok=True)  # the one before it goes on, with acts of these numbers
            raise

    def _take(self, file: int, end: int, salt: int) -> None:
        """From now on acts go into this file, whose content is on the disk up to here."""
        self._file, self._salt, self._last = file, salt, None
        self._end = self._synced = self._allocated = end
        self._durable, self.size = self.next, 0

    def _go_on(self, start: int, path: Path) -> None:
        """After a restart: cut off what was never wholly written at the end of the last segment.

        Those before it may be many and old. Whoever needs them reads them with `replay`, which checks them.
        """
        segment = self._segment(path)
        acts, end = segment.contents.acts, segment.contents.end
        self.next = start + len(acts)
        file = os.open(path, os.O_RDWR)
        os.ftruncate(file, end)
        os.fsync(file)
        self._take(file, end, segment.salt)
        self.size, self._last = end - acts[0][0] if acts else 0, segment

    def _segment(self, path: Path) -> Segment:
        if self._last is not None and self._last.path == path:
            return self._last
        segment = Segment(path)
        if segment.contents.table.get("run") != self.table.get("run"):
            raise Damaged(f"{path}: belongs to another run")
        return segment

    def _make_room(self, length: int) -> None:
        if self._end + length <= self._allocated:
            return
        for more in (max(self.step, length), length):
            try:
                os.posix_fallocate(self._file, self._allocated, self._end + more - self._allocated)
            except OSError as error:
                refused = self._refused(error)
            else:
                self._allocated = self._end + more
                return
        raise refused

    def _refused(self, error: OSError) -> Exception:
        if error.errno not in FULL:
            return error
        self.full = True
        return DiskFull(error.strerror)

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            await loop.run_in_executor(self._thread, self._bring)
            ready = [waiter for goal, waiter in self._waiters if goal <= self._durable]
            self._waiters = [pair for pair in self._waiters if pair[0] > self._durable]
            for waiter in ready:
                if not waiter.done():
                    waiter.set_result(None)
        self._flusher = None

    def _bring(self) -> None:
        """What is written by now, to the disk. More may be written meanwhile: that is for the next time."""
        with self._switching:
            acts, end = self.next, self._end
            try:
                getattr(os, "fdatasync", os.fsync)(self._file)
            except OSError as error:
                self._failed(error)
                raise
            failpoint.reach("ledger.synced")
            self._durable, self._synced = acts, end


def segments(directory: Path) -> list[tuple[int, Path]]:
    """The number of each segment's first act, and its file."""
    paths = (path for path in directory.glob("*.log") if path.stem.isdecimal())
    return sorted((int(path.stem), path) for path in paths)
