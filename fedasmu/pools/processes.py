"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait

from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.pools import contract
from fedasmu.pools.backlog import FIRST, Backlog
from fedasmu.pools.contract import Answer, Job, Site
from fedasmu.pools.worker import Died, Worker


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
        self._repeated: set[int] = set()  # tickets whose worker has died once
        self._tickets = 0
        self._workers = [self._worker() for _ in range(workers)]
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
        if isinstance(answer := self._done[ticket], DeviceError):
            raise answer
        del self._done[ticket]
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
            ticket, job = worker.ticket, worker.job
            assert job is not None
            try:
                answer = worker.take()
            except Died:
                self._mourn(worker, ticket, job)
            else:
                self._idle.append(worker)
                self._keep(ticket, answer)
        self._feed()

    def _feed(self) -> None:
        while self._idle and self._backlog:
            ticket, job = self._backlog.next()
            worker = self._idle.pop()
            try:
                worker.give(ticket, job)
            except DeviceError as error:
                self._idle.append(worker)
                self._keep(ticket, error)
            except Died:  # while it was idle: not for anything that this job does
                self._replace(worker)
                self._backlog.add(ticket, job, FIRST)

    def _keep(self, ticket: int, answer: Answer | DeviceError) -> None:
        self._repeated.discard(ticket)
        if ticket in self._unwanted:
            self._unwanted.remove(ticket)
        else:
            self._done[ticket] = answer

    def _mourn(self, worker: Worker, ticket: int, job: Job) -> None:
        """A computation is a function of its job: what a dead worker had is done again, once, to the same bits."""
        code = self._replace(worker)
        died = f"worker process died (exit code {code}); -9 usually means that memory ran out"
        if ticket in self._repeated or ticket in self._unwanted:
            self._keep(ticket, job.failure(f"its {died}, for the second time"))
            return
        self._repeated.add(ticket)
        self._backlog.add(ticket, job, FIRST)
        self._site.say(f"a {died}. What it did for {job.name} is done again")

    def _replace(self, worker: Worker) -> int | None:
        """Another worker in the place of a dead one, whose exit code is returned."""
        worker.process.join(1.0)  # what ends by itself keeps its exit code
        worker.stop()
        self._workers.remove(worker)
        self._workers.append(another := self._worker())
        self._idle.append(another)
        return worker.process.exitcode

    def _worker(self) -> Worker:
        return Worker(self._site.perform, lane_bytes=4 * self._site.vector_bytes + (1 << 12))
