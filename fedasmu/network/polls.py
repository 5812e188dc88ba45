"""The long polls that are open: who waits for a task, and is woken when there is one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from starlette.requests import Request

from fedasmu.network.replies import hung_up

OPEN = 1500  # at once, before devices are told to come back later
PACE = 200.0  # polls a second that a fleet then makes in all
LONGEST = 600.0  # seconds


class Polls:
    def __init__(self, opened: Callable[[], None]) -> None:
        self._open: dict[int, asyncio.Event] = {}
        self._opened = opened

    @property
    def full(self) -> bool:
        return len(self._open) >= OPEN

    async def wait(self, request: Request, device: int, seconds: float) -> bool:
        """Until there is a task, the time is up, or the device has hung up. Whether it has not polled again since."""
        self.answer(device)  # a second poll of the same device ends the first
        mine = self._open[device] = asyncio.Event()
        self._opened()
        gone = asyncio.ensure_future(hung_up(request))
        answered = asyncio.ensure_future(mine.wait())
        try:
            await asyncio.wait({gone, answered}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answered.cancel()
            last = self._open.get(device) is mine
            if last:
                del self._open[device]
        return last

    def answer(self, device: int) -> None:
        """Wake the poll of this device, if there is one."""
        if (waiting := self._open.get(device)) is not None:
            waiting.set()

    def release(self) -> None:
        for device in list(self._open):
            self.answer(device)

    def pause(self, seats: int, least: float) -> int:
        """Seconds after which a device without a task is to come back."""
        steered = random.uniform(0.5, 1.5) * seats / PACE if self.full else 0.0
        return round(min(max(steered, least), LONGEST))
