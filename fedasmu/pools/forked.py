"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
from selectors import EVENT_READ, DefaultSelector

from fedasmu.errors import UserError
from fedasmu.pools.arena import Arena
from fedasmu.pools.contract import Job, Site
from fedasmu.pools.crew import Answered, Crew, Lost
from fedasmu.pools.worker import Died, Worker


def processes(site: Site, workers: int) -> Crew:
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UserError(f"workers = {workers}: worker processes need an operating system with fork; inline needs none")
    return Crew(site, Forked(site, workers))


class Forked:
    """Processes forked from this one, so that they share the data set's memory; vectors lie in shared memory too."""

    def __init__(self, site: Site, count: int) -> None:
        self.arena = Arena(site.vector_bytes)
        self.team: list[Worker] = []
        self._perform = site.perform
        self._selector = DefaultSelector()
        self._lost: list[Lost] = []
        try:
            for _ in range(count):
                self._hire()
        except OSError:  # too few descriptors, no more processes: those that there are must not be waited for at exit
            self.close()
            raise

    def vacant(self, waiting: int) -> bool:
        """Somebody has nothing to do; or will have nothing next, while there is enough for everybody."""
        ahead = waiting > len(self.team)
        return min(map(_load, self.team)) <= ahead

    def give(self, ticket: int, job: Job) -> bool:
        worker = min(self.team, key=_load)
        try:
            return worker.give(ticket, job)
        except Died:  # nothing that this job did
            self._replace(worker)
            return self.give(ticket, job)

    def heard(self, timeout: float) -> list[Answered | Lost]:
        news: list[Answered | Lost] = []
        for key, _ in self._selector.select(0.0 if self._lost else timeout):
            try:
                news.append(key.data.take())
            except Died:
                self._replace(key.data)
        news += self._lost
        self._lost = []
        return news

    def close(self) -> None:
        for worker in self.team:
            worker.stop()
        self._selector.close()

    def _replace(self, worker: Worker) -> None:
        self._selector.unregister(worker.connection)
        worker.process.join(1.0)  # what ends by itself keeps its exit code
        worker.stop()
        self.team.remove(worker)
        self._hire()
        death = f"worker process died (exit code {worker.process.exitcode}); -9 usually means that memory ran out"
        self._lost += [Lost(one.ticket, one.job, death, not place) for place, one in enumerate(worker.given)]

    def _hire(self) -> None:
        self.team.append(worker := Worker(self._perform, self.arena))
        self._selector.register(worker.connection, EVENT_READ, worker)


def _load(worker: Worker) -> int:
    """How much a worker has to do. An evaluation may take long, so no training is made to wait behind one."""
    return sum(2 if given.job.task < 0 else 1 for given in worker.given)
