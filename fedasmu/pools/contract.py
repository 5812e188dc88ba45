"""What a pool is: it takes computations, and hands their results over when they are needed.

A computation is submitted as soon as it is known, with the virtual time at which its result is needed. A pool begins
with what is needed first, so that trainings that overlap in virtual time run side by side, and hardly one is done that
the end of the run makes unnecessary. The answers are the same bits wherever they are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fedasmu.errors import DeviceError
from fedasmu.protocol import Computation, Evaluated, Probed, Trained

Answer = Trained | Probed | Evaluated
Perform = Callable[[Computation, int, int], Answer]
PATIENCE = 30.0  # seconds of silence before the user is told who is waited for


@dataclass(frozen=True, slots=True)
class Job:
    command: Computation
    device: int  # -1: an evaluation, which belongs to no device
    task: int
    seed: int

    @property
    def name(self) -> str:
        return f"device {self.device} (task {self.task})" if self.task >= 0 else "the evaluation"

    def failure(self, trace: str) -> DeviceError:
        who = f"device {self.device} (task {self.task}, seed {self.seed})" if self.task >= 0 else self.name
        return DeviceError(self, f"{type(self.command).__name__} failed on {who}\n\n{trace.rstrip()}")


class Pool(Protocol):
    def submit(self, job: Job, needed: float) -> int:
        """Accept a computation whose result is needed at this virtual time; the number returned is its ticket."""

    def result(self, ticket: int) -> Answer:
        """Wait for a result and hand it over. Raises `DeviceError` if the computation failed, and does so again when
        asked again; `Interrupted` if the user asks to stop meanwhile.
        """

    def ready(self, ticket: int) -> bool:
        """Whether `result` would answer at once."""

    def cancel(self, ticket: int) -> None:
        """The result is no longer wanted."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Site:
    """What a pool is told about the run that it computes for."""

    perform: Perform  # can be pickled, where it is `Trainer.perform`
    vector_bytes: int  # of one model
    stopping: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda message: None
    gpus: float = 0.0  # of an accelerator that a worker needs
    computes_here: bool = True  # not where computing would take an accelerator from the workers


Factory = Callable[[Site], Pool]
