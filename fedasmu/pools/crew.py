"""A pool of workers, wherever they are: what waits, what is done, and what is done again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fedasmu.errors import DeviceError, Interrupted
from fedasmu.pools import contract
from fedasmu.pools.backlog import FIRST, Backlog
from fedasmu.pools.contract import Answer, Job, Site
from fedasmu.pools.costs import Costs
from fedasmu.pools.inline import Inline
from fedasmu.protocol import Computation


class Answered(NamedTuple):
    ticket: int
    job: Job
    answer: Answer | DeviceError
    seconds: float  # of the processor


class Lost(NamedTuple):
    """What a worker had when it died."""

    ticket: int
    job: Job
    death: str  # in words that follow on "a" and "its"
    at_work: bool  # False: it was only waiting there


class Workforce(Protocol):
    """Some workers. The crew decides what they do; they say when it is done."""

    def vacant(self, waiting: int) -> bool:
        """Whether somebody should be given one of so many computations that wait."""

    def give(self, ticket: int, job: Job) -> bool:
        """Whether a worker has it now. Raises `DeviceError` if none ever can."""

    def heard(self, timeout: float) -> Sequence[Answered | Lost]:
        """What they have to say; waits so many seconds for it at most."""

    def close(self) -> None: ...


class Crew:
    """Hands out what is needed first, and does again what a dead worker had: a computation is a function of its job.

    A computation that takes less than handing it over is done in this process. Its ticket is negative.
    """

    def __init__(self, site: Site, workers: Workforce) -> None:
        self.workers = workers
        self._site = site
        self._here, self._costs = Inline(self._perform_here, site.stopping), Costs()
        self._backlog = Backlog()
        self._given: dict[int, Job] = {}
        self._done: dict[int, Answer | DeviceError] = {}
        self._unwanted: set[int] = set()
        self._repeated: set[int] = set()  # tickets whose worker has died once
        self._tickets = 0

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
            if time.monotonic() - warned > contract.PATIENCE and ticket not in self._done:
                warned = time.monotonic()
                job = self._given.get(ticket) or self._backlog.get(ticket)
                self._site.say(f"still waiting for {job.name if job else ticket} after {warned - began:.0f} s")
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
        self.workers.close()

    def _perform_here(self, command: Computation, device: int, seed: int) -> Answer:
        began = time.thread_time()
        answer = self._site.perform(command, device, seed)
        self._costs.computed(type(command), time.thread_time() - began)
        return answer

    def _collect(self, timeout: float) -> None:
        """Give work to workers that have none, take results from those that are done, and give them more."""
        self._feed()
        began = time.thread_time()
        for news in (heard := self.workers.heard(timeout)):
            if isinstance(news, Lost):
                self._repeat(news)
            else:
                self._keep(news.ticket, news.answer)
                self._costs.computed(type(news.job.command), news.seconds)
        if heard:
            self._costs.handed((time.thread_time() - began) / len(heard))
        self._feed()

    def _feed(self) -> None:
        while self._backlog and self.workers.vacant(len(self._backlog)):
            began = time.thread_time()
            needed, ticket, job = self._backlog.next()
            try:
                if not self.workers.give(ticket, job):
                    self._backlog.add(ticket, job, needed)
                    return
                self._given[ticket] = job
            except DeviceError as error:
                self._keep(ticket, error)
            self._costs.handed(time.thread_time() - began)

    def _keep(self, ticket: int, answer: Answer | DeviceError) -> None:
        self._repeated.discard(ticket)
        self._given.pop(ticket, None)
        if ticket in self._unwanted:
            self._unwanted.remove(ticket)
        else:
            self._done[ticket] = answer

    def _repeat(self, lost: Lost) -> None:
        ticket, job = lost.ticket, lost.job
        if ticket in self._unwanted or (lost.at_work and ticket in self._repeated):
            self._keep(ticket, job.failure(f"its {lost.death}, for the second time"))
            return
        self._backlog.add(ticket, job, FIRST)
        if lost.at_work:
            self._repeated.add(ticket)
            self._site.say(f"a {lost.death}. What it did for {job.name} is done again")
