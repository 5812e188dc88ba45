"""Virtual time: a heap of events. Ties go to the event that was scheduled first."""

from __future__ import annotations

from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Any


class Kind(StrEnum):
    TICK = "tick"  # the server's timer
    DONE = "done"  # a device has finished a computation
    ASK = "ask"  # a device's request for a fresh model reaches the server
    ANSWER = "answer"  # the server's answer to it reaches the device
    ARRIVE = "arrive"  # an upload reaches the server
    LOST = "lost"  # a device dies, or goes offline


TICK, DONE, ASK, ANSWER, ARRIVE, LOST = Kind  # looking one of them up in its class costs more than comparing with it

Event = tuple[float, int, Kind, int]
"""Its time, its number, its kind and its task, -1 where none is concerned. There are many of them: plain tuples."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[Event] = []
        self._scheduled = 0

    def schedule(self, time: float, kind: Kind, task: int = -1) -> None:
        if time < self.now:
            raise ValueError(f"cannot schedule {kind} at {time}: it is {self.now} already")
        heappush(self._heap, (time, self._scheduled, kind, task))
        self._scheduled += 1

    def next(self) -> Event:
        """The next event, which stays where it is until `advance`."""
        return self._heap[0]

    def advance(self) -> Event:
        event = heappop(self._heap)
        self.now = event[0]
        return event

    def state(self) -> dict[str, Any]:
        return {"now": self.now, "scheduled": self._scheduled, "events": [list(event) for event in sorted(self._heap)]}

    def restore(self, state: dict[str, Any]) -> None:
        self.now, self._scheduled = state["now"], state["scheduled"]
        self._heap = [(time, number, Kind(kind), task) for time, number, kind, task in state["events"]]
        heapify(self._heap)
