"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait

from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.pools import contract
from fedasmu.pools.backlog import Backlog
from fedasmu.pools.contract import Answer, Job, Site
from fedasmu.pools.worker import Worker


class Processes:
    """Worker processes, forked so that they share the data set's memory; models travel through shared memory too."""

    def __init__(self, site: Site, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                f"workers = {workers}: worker processes need an operating system with fork; use --workers inline"
            )
        self._site = site
        self._backlog = Backlog()
        self._done: dict[int, Answer | DeviceError] = {}
        self._unwanted: set[int] = set()
        self._tickets = 0
        self._workers = [Worker(site.perform, lane_bytes=4 * site.vector_bytes + (1 << 12)) for _ in range(workers)]
        self._idle = list(self._workers)

    def submit(self, job: Job, needed: float) -> int:
        self._tickets += 1
        self._backlog.add(self._tickets, job, needed)
        self._collect(0.0)
        return self._tickets

    def result(self, ticket: int) -> Answer:
        self._backlog.promote(ticket)
        began = warned = time.monotonic()
        while ticket not in self._done:
            self._collect(0.25)
            if self._site.stopping():
                raise Interrupted
            if time.monotonic() - warned > contract.PATIENCE and (job := self._find(ticket)) is not None:
                warned = time.monotonic()
                self._site.say(f"still waiting for {job.name} after {warned - began:.0f} s")
        answer = self._done.pop(ticket)
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def ready(self, ticket: int) -> bool:
        self._collect(0.0)
        return ticket in self._done

    def cancel(self, ticket: int) -> None:
        if not self._backlog.remove(ticket) and self._done.pop(ticket, None) is None:
            self._unwanted.add(ticket)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _find(self, ticket: int) -> Job | None:
        return next((worker.job for worker in self._workers if worker.ticket == ticket), self._backlog.get(ticket))

    def _collect(self, timeout: float) -> None:
        """Give work to idle workers, take results from those that are done, and give them more."""
        self._feed()
        for ready in wait([worker.connection for worker in self._workers if worker.job], timeout):
            worker = next(worker for worker in self._workers if worker.connection is ready)
            ticket, answer = worker.take()
            self._idle.append(worker)
            if ticket in self._unwanted:
                self._unwanted.remove(ticket)
            else:
                self._done[ticket] = answer
        self._feed()

    def _feed(self) -> None:
        while self._idle and self._backlog:
            self._idle.pop().give(*self._backlog.next())
