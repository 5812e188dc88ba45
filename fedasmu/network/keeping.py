"""Checkpoints of a run that is served: frozen by the event loop between two acts, written by a thread meanwhile.

A checkpoint names the act that follows it, which is the first of a new segment of the ledger. Until it is on the disk,
the one before it and the segments since then are what a recovery starts from.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from fedasmu.network import failpoint
from fedasmu.network.acts import Acts
from fedasmu.network.ledger import is_full
from fedasmu.storage import checkpoint
from fedasmu.storage.checkpoint import Frozen
from fedasmu.storage.record import SHELVES
from fedasmu.storage.shelf import check_shelves
from fedasmu.system.disk import sync
from fedasmu.system.process import one_worker

TAIL = 64 << 20  # bytes of ledger that a recovery applies in half a second
AGAIN = 1.0  # seconds, at least, between two attempts


class Keeping:
    def __init__(self, folder: Path, acts: Acts, pause: float, prune: bool) -> None:
        """A checkpoint is due every so many seconds; what only earlier ones need is removed, or not."""
        self.folder, self.acts, self._pause, self._prune = folder, acts, pause, prune
        self._began = self._saved = time.monotonic()
        self._kept = 0  # the act that the newest checkpoint is followed by
        self._wall = 0.0  # seconds that earlier processes have served
        self._size = 0  # bytes of the newest checkpoint
        self._thread = one_worker("checkpoint")
        self._writing: asyncio.Task[None] | None = None

    def recover(self, say: Callable[[str], None]) -> tuple[bool, int]:
        """Whether there was anything to go on with, and how many acts had to be applied again."""
        whole = partial(check_shelves, directory=self.folder / SHELVES)
        state = checkpoint.load(self.folder / "checkpoint", say, whole)
        if state is not None:
            self.acts.restore(state)
            self._kept, self._wall = state["act"], state["wall"]
        applied = self.acts.recover(self._kept)
        self._saved -= AGAIN  # where there was much to apply, the next recovery is to have less
        return state is not None or applied > 0, applied

    @property
    def wall(self) -> float:
        """Seconds that the run was served, by whatever process."""
        return self._wall + time.monotonic() - self._began

    def look(self) -> None:
        """Begin a checkpoint if one is due. Raises what went wrong with the last one."""
        if self._writing is not None and self._writing.done():
            done, self._writing = self._writing, None
            done.result()
        if self._writing is None and self._due():
            self._writing = asyncio.get_running_loop().create_task(self._keep())

    async def settled(self) -> None:
        """The one that is being written is on the disk, or will never be."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def save(self) -> None:
        """A checkpoint now: nothing else is going on any more."""
        if self.acts.broken is not None:
            return  # the ledger has it all
        self._sync_shelves()
        self._put(*self._frozen())
        self.acts.desk.kept()

    def close(self) -> None:
        self._thread.shutdown()

    def _due(self) -> bool:
        """A ledger that is longer than a checkpoint costs a recovery more than that would."""
        waited = time.monotonic() - self._saved
        long = self.acts.ledger.size >= max(TAIL, self._size) and waited >= AGAIN
        return (waited >= self._pause or long) and self._quiet

    @property
    def _quiet(self) -> bool:
        """Whether freezing would not wait for an evaluation; at last it does wait."""
        return not self.acts.desk.meter.pending or time.monotonic() - self._saved > 2 * self._pause

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._sync_shelves)
            await self.acts.ledger.durable()  # so that changing to a new segment has nothing to wait for
            if not self._quiet or self.acts.broken is not None:
                return
            await loop.run_in_executor(self._thread, self._put, *self._frozen())
            self.acts.desk.kept()
        except OSError as error:
            if not is_full(error):
                raise
        self._saved = time.monotonic()  # on a full disk too: the ledger has it all, and there is a next time

    def _frozen(self) -> tuple[int, Frozen]:
        """The number of the act that comes next, and everything before it."""
        number = self.acts.ledger.rotate()
        state = {**self.acts.state(), "act": number, "wall": self.wall}
        return number, checkpoint.frozen(state, self._models())

    def _models(self) -> Iterator[Tensor]:
        """Nobody writes into a model that tasks are made from: `Server` sees to it."""
        desk, server = self.acts.desk, self.acts.desk.server
        flying = (model for entry in server.ledger.values() for model in (entry.task.model, entry.fresh))
        return (model.vector for model in (server.model, desk.judged, *flying) if model is not None)

    def _put(self, number: int, state: Frozen) -> None:
        failpoint.reach("checkpoint.put")
        checkpoint.add(state, self.folder / "checkpoint")
        sync(self.folder / "checkpoint")
        failpoint.reach("checkpoint.renamed")
        if self._prune:
            self.acts.ledger.prune(before=self._kept)
        self._kept, self._size, self._saved = number, state.size, time.monotonic()

    def _sync_shelves(self) -> None:
        """What is frozen must be on the disk then. Most of it is brought there before, while others go on."""
        newest = time.time_ns() - int(2e9 * (time.monotonic() - self._saved)) - int(60e9)
        for path in (self.folder / SHELVES).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # replaced, or given its final name, in the meantime
                if path.is_dir() or path.stat().st_mtime_ns >= newest:
                    sync(path)
