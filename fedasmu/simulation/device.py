"""A simulated device at work on a task: its session, what of it the pool computes, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedasmu.pools import Job, Pool
from fedasmu.protocol import Computation, Fetch, Memory, Model, Report, Task, Workload
from fedasmu.run.profiles import Profile
from fedasmu.session import Work, samples


@dataclass(slots=True)
class Device:
    task: Task
    work: Work
    load: Workload
    memory: Memory  # a copy of its own, kept when the task is delivered
    profile: Profile
    slowdown: float
    pool: Pool
    ticket: int | None = None  # of its computation in the pool
    answer: Model | None = None  # to its request for a fresh model
    report: Report | None = None

    def nominal(self, down: int, up: int) -> float:
        """Seconds from the moment its task is sent until its model arrives, if all goes well and nothing is added."""
        training = self._seconds(self.load.samples(range(self.load.steps)))
        return self.profile.download(down) + training + self.profile.upload(up)

    def seconds(self, command: Computation) -> float:
        return self._seconds(samples(command, self.load))

    def _seconds(self, samples: float) -> float:
        return samples * self.profile.seconds_per_sample * self.slowdown

    def submit(self, command: Computation, needed: float) -> None:
        """Hand a computation to the pool, which may take until `needed` in virtual time."""
        task = self.task
        self.ticket = self.pool.submit(Job(command, task.device, task.id, task.seed), needed)

    def abandon(self) -> None:
        if self.ticket is not None:
            self.pool.cancel(self.ticket)
        self.work.close()

    def state(self) -> dict[str, Any]:
        """A session cannot be saved, but it can be played again: what it was answered is kept."""
        return {"task": self.task.id, "replies": self.work.replies, "polls": self.work.polls}

    def replay(self, replies: int, polls: Iterable[bool], fresh: Model | None, needed: float) -> None:
        """Run the task again from its start to where a checkpoint found it, to the same bits."""

        def perform(command: Computation) -> Any:
            self.submit(command, needed)
            assert self.ticket is not None
            result, self.ticket = self.pool.result(self.ticket), None
            return result

        step = self.work.replay(replies, polls, fresh, perform)
        if isinstance(step, Report):
            self.report = step
        elif isinstance(step, Fetch):
            self.answer = fresh if self.work.fetches == 1 else None
        else:
            self.submit(step, needed)
