"""Everything in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

from fedasmu.pools.contract import Answer, Job, Perform
from fedasmu.protocol import Computation, Evaluated, Probe, Probed, Train, Trained


class Inline:
    """Computes when a result is asked for: breakpoints work, and nothing is computed in vain."""

    def __init__(self, perform: Perform, stopping: Callable[[], bool] = lambda: False) -> None:
        self._perform, self._stopping = perform, stopping
        self._jobs: dict[int, Job] = {}
        self._tickets = 0

    def submit(self, job: Job, needed: float) -> int:
        self._tickets += 1
        self._jobs[self._tickets] = job
        return self._tickets

    def result(self, ticket: int) -> Answer:
        job = self._jobs[ticket]
        try:
            answer = self._perform(job.command, job.device, job.seed)
        except BaseException as error:  # a model may also raise SystemExit
            if isinstance(error, KeyboardInterrupt) and self._stopping():
                raise  # a second Ctrl-C
            raise job.failure(traceback.format_exc()) from error
        del self._jobs[ticket]
        return answer

    def ready(self, ticket: int) -> bool:
        return True

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)

    def close(self) -> None:
        self._jobs.clear()


LEVEL = Probed(0.0, slope=0.0)


def timing_only(command: Computation, device: int, seed: int, trainable: int | None = None) -> Answer:
    """Computes nothing: for studies of schedules and fleets, where only the order of events matters."""
    if isinstance(command, Train):
        return Trained(command.vector, 0.0)
    if isinstance(command, Probe):
        if command.between is not None:
            return LEVEL
        return Probed(0.0, torch.zeros_like(command.vector[:trainable]) if command.gradient else None)
    return Evaluated(0.0, 0.0)
