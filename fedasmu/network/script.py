"""A simulation's order of events, played over a real network: the same calls at the same times, so the same files.

A tape is made of the calls that a simulation makes to its desk. A script then lets each request of a device act only
when its turn has come; what needs no request (starts and losses) happens by itself in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedasmu.network import wire
from fedasmu.network.coordinator import Coordinator, Gone
from fedasmu.network.ledger import DiskFull
from fedasmu.server.desk import Desk

ALONE = ("start", "lose")  # what needs no request of a device
LISTENED = ("tick", "start", "fetch", "sending", "wanted", "receive", "lose", "flush")


@dataclass(frozen=True, slots=True)
class Line:
    kind: str  # start, fetch, poll, sending, upload, lose or flush
    time: float
    task: int = -1
    devices: tuple[int, ...] = ()
    digest: str = ""  # of an upload's model


class Tape:
    """The calls made to a desk from now on, in their order."""

    def __init__(self, desk: Desk) -> None:
        self.lines: list[Line] = []
        self._now = 0.0
        for name in LISTENED:
            setattr(desk, name, self._listened(name, getattr(desk, name)))

    def _listened(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def listened(*given: Any) -> Any:
            result = call(*given)
            self._note(name, given, result)
            return result

        return listened

    def _note(self, name: str, given: tuple[Any, ...], result: Any) -> None:
        if name in ("wanted", "sending"):  # these are told no time: they belong to the moment before
            kind, task, time = {"wanted": "poll"}.get(name, name), given[0], self._now
        else:
            time = self._now = given[0]
            task = given[1] if name in ("fetch", "receive", "lose") else -1
            kind = {"tick": "start", "receive": "upload"}.get(name, name)
        devices = tuple(task.device for task in result) if kind == "start" else ()
        digest = wire.digest(given[3].vector) if kind == "upload" else ""
        if kind != "start" or devices:
            self.lines.append(Line(kind, time, task, devices, digest))


class Free:
    """No script: every request acts when it comes."""

    real = True  # the clock

    async def turn(self, kind: str, task: int, settled: Callable[[], bool]) -> bool:
        return False

    def done(self, turn: bool, digest: str = "") -> None:
        pass

    async def sent(self, task: int, data: bytes) -> None:
        pass


class Script:
    """Whose turn it is."""

    real = False

    def __init__(self, lines: Sequence[Line], coordinator: Coordinator, answer: Callable[[int], None]) -> None:
        self._lines, self._coordinator, self._answer = lines, coordinator, answer
        self._place = 0
        self._changed = asyncio.Event()
        self._sending: set[int] = set()  # tasks whose upload is under way
        self.time = 0.0
        self.differing: list[int] = []  # tasks whose model was another than in the simulation

    @property
    def over(self) -> bool:
        return self._place >= len(self._lines) or self._lines[self._place].kind == "flush"

    def begin(self) -> None:
        """What needs no request, as far as it is next."""
        with suppress(DiskFull):
            self._by_itself()

    def go_on(self) -> None:
        """The same, where a full disk had kept it back."""
        if not self.over and self._lines[self._place].kind in ALONE:
            self.begin()

    async def turn(self, kind: str, task: int, settled: Callable[[], bool]) -> bool:
        """Wait until this call of this task is the next. False if it was made meanwhile, by an earlier request."""
        while not settled():
            line = None if self.over else self._lines[self._place]
            if line is not None and (line.kind, line.task) == (kind, task):
                self.time = line.time
                return True
            if task not in self._coordinator.server.ledger or self.over:
                raise Gone
            await self._changed.wait()
        return False

    async def sent(self, task: int, data: bytes) -> None:
        """A simulation counts the bytes of an upload when it begins."""
        if await self.turn("sending", task, lambda: task in self._sending):
            self._coordinator.acts.do("sending", self.time, data, task=task)
            self._sending.add(task)
            self.done(True)

    def done(self, turn: bool, digest: str = "") -> None:
        """If it was this call's turn, it was made: on to the next line."""
        if not turn:
            return
        line = self._lines[self._place]
        if line.digest != digest:
            self.differing.append(line.task)
        self._place += 1
        self.begin()

    def _by_itself(self) -> None:
        while not self.over and (line := self._lines[self._place]).kind in ALONE:
            self.time = line.time
            if line.kind == "start":
                self._coordinator.start(list(line.devices), line.time)
                for device in line.devices:
                    self._answer(device)
            else:
                self._coordinator.lose(line.task, line.time)
            self._place += 1
        if not self._place < len(self._lines):
            self.time = self._lines[-1].time if self._lines else 0.0
        elif self.over:
            self.time = self._lines[self._place].time
        self._changed.set()
        self._changed = asyncio.Event()
