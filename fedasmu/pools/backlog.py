"""Computations that no worker has yet: what is needed first comes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from fedasmu.pools.contract import Job

FIRST = -1.0  # before everything in virtual time


class Backlog:
    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._order: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, ticket: int) -> Job | None:
        return self._jobs.get(ticket)

    def add(self, ticket: int, job: Job, needed: float) -> None:
        self._jobs[ticket] = job
        heappush(self._order, (needed, ticket))

    def next(self) -> tuple[float, int, Job]:
        """When it is needed, its ticket and the computation."""
        needed, ticket = heappop(self._order)
        return needed, ticket, self._jobs.pop(ticket)

    def promote(self, ticket: int) -> None:
        """What is waited for goes first, whenever it was thought to be needed."""
        if ticket in self._jobs and self._order[0][1] != ticket:
            self._order = [(FIRST if entry[1] == ticket else entry[0], entry[1]) for entry in self._order]
            heapify(self._order)

    def remove(self, ticket: int) -> bool:
        """Whether it was there."""
        if self._jobs.pop(ticket, None) is None:
            return False
        self._order = [entry for entry in self._order if entry[1] != ticket]
        heapify(self._order)
        return True
