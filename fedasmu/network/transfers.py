"""Uploads on their way: how many are read at once, and what is kept of large ones that break off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from fedasmu.network.door import Problem

TRANSFERS = 64
PATIENCE = 8.0  # seconds: less than a peer has for its body


class Transfers:
    """Whoever comes when so many are read waits a little, with its body unread, as TCP lets it.

    Refusing at once would be dear: a device has its body on the way when it hears of it, and sends it once more. A
    device has one place: where it begins anew, its connection broke, and what it sent before is not waited for.
    """

    def __init__(self, most: int = TRANSFERS, patience: float = PATIENCE) -> None:
        self._free, self._patience = asyncio.Semaphore(most), patience
        self._of: dict[int, asyncio.Timeout] = {}

    @asynccontextmanager
    async def one(self, device: int) -> AsyncIterator[None]:
        if (before := self._of.pop(device, None)) is not None:
            before.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(None) as mine:
                self._of[device] = mine
                await self._place()
                try:
                    yield
                finally:
                    self._free.release()
        except TimeoutError:
            raise Problem(503, "anew", "this device has begun to send it anew", pause=1) from None
        finally:
            if self._of.get(device) is mine:
                del self._of[device]

    async def _place(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            pause = random.randint(1, 5)  # so that those who are refused do not come back at once
            raise Problem(503, "busy", "too many uploads at once", pause=pause) from None


@dataclass(frozen=True, slots=True)
class Part:
    """What has come of an upload with this digest. Whether it is that, the whole will show."""

    task: int
    digest: str
    data: bytearray = field(default_factory=bytearray)


class Parts:
    """One for a device at most, for as long as it has the task; and so many in all, of which the oldest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, Part] = {}

    def held(self, device: int, task: int, digest: str) -> bytearray:
        part = self._held.get(device)
        return part.data if part is not None and (part.task, part.digest) == (task, digest) else bytearray()

    @contextmanager
    def one(self, device: int, task: int, digest: str, first: int) -> Iterator[bytearray]:
        """Where an upload's bytes go, from the first that is sent now. They are kept if the device goes away."""
        if first > len(held := self.held(device, task, digest)):
            raise Problem(503, "part", f"only {len(held)} bytes of this upload are here", pause=1)
        part = Part(task, digest, held[:first])  # a copy: whoever sent the rest of it may still be heard
        self._held.pop(device, None)
        self._held[device] = part
        if len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        broken_off = False
        try:
            yield part.data
        except (ClientDisconnect, asyncio.CancelledError):  # or the device has begun anew
            broken_off = True
            raise
        finally:
            if not broken_off and self._held.get(device) is part:
                del self._held[device]

    def expire(self, tasks: Mapping[int, int]) -> None:
        """Forget what was sent for tasks that their devices do not have any more."""
        self._held = {device: part for device, part in self._held.items() if tasks.get(device) == part.task}
