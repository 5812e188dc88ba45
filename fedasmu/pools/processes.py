"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import time
from selectors import EVENT_READ, DefaultSelector

from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.pools import contract
from fedasmu.pools.arena import Arena
from fedasmu.pools.backlog import FIRST, Backlog
from fedasmu.pools.contract import Answer, Job, Site
from fedasmu.pools.costs import Costs
from fedasmu.pools.inline import Inline
from fedasmu.pools.worker import Died, Worker


class Processes:
    """Worker processes, forked so that they share the data set's memory; models travel through shared memory too.

    A computation that takes less than handing it over is done in this process. Its ticket is negative.
    """

    def __init__(self, site: Site, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                f"workers = {workers}: worker processes need an operating system with fork; use --workers inline"
            )
        self._site = site
        self._here, self._costs = Inline(site.perform, site.stopping), Costs()
        self._backlog = Backlog()
        self._done: dict[int, Answer | DeviceError] = {}
        self._unwanted: set[int] = set()
        self._repeated: set[int] = set()  # tickets whose worker has died once
        self._tickets = 0
        self._arena = Arena(site.vector_bytes)
        self._selector = DefaultSelector()
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._hire()

    def submit(self, job: Job, needed: float) -> int:
        if self._site.computes_here and self._costs.cheaper_here(job.command):
            return -self._here.submit(job, needed)
        self._tickets += 1
        self._backlog.add(self._tickets, job, needed)
        self._collect(0.0)
        return self._tickets

    def result(self, ticket: int) -> Answer:
        if ticket < 0:
            return self._here.result(-ticket)
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
        if ticket < 0:
            return True
        self._collect(0.0)
        return ticket in self._done

    def cancel(self, ticket: int) -> None:
        if ticket < 0:
            self._here.cancel(-ticket)
        elif not self._backlog.remove(ticket) and self._done.pop(ticket, None) is None:
            self._unwanted.add(ticket)

    def close(self) -> None:
        self._here.close()
        for worker in self._workers:
            worker.stop()
        self._selector.close()

    def _find(self, ticket: int) -> Job | None:
        given = (given for worker in self._workers for given in worker.given)
        return next((one.job for one in given if one.ticket == ticket), self._backlog.get(ticket))

    def _collect(self, timeout: float) -> None:
        """Give work to workers that have none, take results from those that are done, and give them more."""
        self._feed()
        for key, _ in self._selector.select(timeout):
            self._hear(key.data)
        self._feed()

    def _hear(self, worker: Worker) -> None:
        began = time.thread_time()
        try:
            ticket, job, answer, seconds = worker.take()
        except Died:
            self._mourn(worker)
            return
        self._keep(ticket, answer)
        self._costs.computed(type(job.command), seconds)
        self._costs.handed(time.thread_time() - began)

    def _feed(self) -> None:
        while self._backlog and (worker := self._vacant()) is not None:
            began = time.thread_time()
            needed, ticket, job = self._backlog.next()
            try:
                if not worker.give(ticket, job):
                    self._backlog.add(ticket, job, needed)
                    return
            except DeviceError as error:
                self._keep(ticket, error)
            except Died:  # nothing that this job did
                self._backlog.add(ticket, job, needed)
                self._mourn(worker)
            self._costs.handed(time.thread_time() - began)

    def _vacant(self) -> Worker | None:
        """One that has nothing to do; or one that would have nothing next, while there is enough for everybody."""
        worker = min(self._workers, key=lambda worker: len(worker.given))
        ahead = len(self._backlog) > len(self._workers)
        return worker if len(worker.given) <= ahead else None

    def _keep(self, ticket: int, answer: Answer | DeviceError) -> None:
        self._repeated.discard(ticket)
        if ticket in self._unwanted:
            self._unwanted.remove(ticket)
        else:
            self._done[ticket] = answer

    def _mourn(self, worker: Worker) -> None:
        """A computation is a function of its job: what a dead worker had is done again, once, to the same bits."""
        self._selector.unregister(worker.connection)
        worker.process.join(1.0)  # what ends by itself keeps its exit code
        worker.stop()
        self._workers.remove(worker)
        self._hire()
        died = f"worker process died (exit code {worker.process.exitcode}); -9 usually means that memory ran out"
        for place, (ticket, job, _) in enumerate(worker.given):
            at_work = place == 0  # the next was only waiting
            if ticket in self._unwanted or (at_work and ticket in self._repeated):
                self._keep(ticket, job.failure(f"its {died}, for the second time"))
                continue
            self._backlog.add(ticket, job, FIRST)
            if at_work:
                self._repeated.add(ticket)
                self._site.say(f"a {died}. What it did for {job.name} is done again")

    def _hire(self) -> None:
        self._workers.append(worker := Worker(self._site.perform, self._arena))
        self._selector.register(worker.connection, EVENT_READ, worker)
