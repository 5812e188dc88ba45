"""Evaluations in one thread of the server: no fork beside an event loop, and the loop never waits for one."""

from __future__ import annotations

import traceback
from concurrent.futures import Future

from fedasmu.pools.contract import Answer, Job, Perform
from fedasmu.system.process import one_worker


class Evaluator:
    """A pool with a single thread. It is asked for evaluations only: devices train by themselves."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._thread = one_worker("evaluate")
        self._futures: dict[int, Future[Answer]] = {}
        self._tickets = 0

    def submit(self, job: Job, needed: float) -> int:
        self._tickets += 1
        self._futures[self._tickets] = self._thread.submit(self._work, job)
        return self._tickets

    def result(self, ticket: int) -> Answer:
        return self._futures.pop(ticket).result()

    def ready(self, ticket: int) -> bool:
        return self._futures[ticket].done()

    def cancel(self, ticket: int) -> None:
        self._futures.pop(ticket).cancel()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _work(self, job: Job) -> Answer:
        try:
            return self._perform(job.command, job.device, job.seed)
        except Exception as error:
            raise job.failure(traceback.format_exc()) from error
