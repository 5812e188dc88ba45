"""Uploads that are read at once. Whoever comes beyond that waits a little, with its body unread, as TCP lets it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fedasmu.network.door import Problem

TRANSFERS = 64
PATIENCE = 8.0  # seconds: less than a peer has for its body


class Transfers:
    """Refusing at once would be dear: a device has its body on the way when it hears of it, and sends it once more."""

    def __init__(self, most: int = TRANSFERS, patience: float = PATIENCE) -> None:
        self._free, self._patience = asyncio.Semaphore(most), patience

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            pause = random.randint(1, 5)  # so that those who are refused do not come back at once
            raise Problem(503, "busy", "too many uploads at once", pause=pause) from None
        try:
            yield
        finally:
            self._free.release()
