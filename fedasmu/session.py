"""Drives a device's session: hands it the replies, answers its polls, and plays it again after a resume.

Whoever drives sees to a `Train`, a `Probe`, an `Evaluate` or a `Fetch` in a way of its own (a virtual clock and a pool,
or a real device and the network), and ends with the `Report`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedasmu.errors import DeviceError
from fedasmu.protocol import (
    Evaluate,
    Evaluated,
    Fetch,
    Model,
    Poll,
    Probe,
    Probed,
    Report,
    Session,
    Task,
    Train,
    Trained,
    Workload,
)

FORWARD = 1 / 3  # of a training step: a loss without its gradient costs one pass of three

Step = Train | Probe | Evaluate | Fetch | Report
"""What a session wants next, or its end."""
COMMANDS = (Train, Probe, Evaluate, Fetch)


class Work:
    """A task under way on a device."""

    def __init__(self, task: Task, session: Session, wanted: Callable[[], bool] = lambda: False) -> None:
        self.task = task
        self.replies = 0  # handed to the session so far, polls not counted
        self.fetches = 0  # requests for a fresh model so far
        self.polls: list[bool] = []  # the answers to its polls
        self._state: Tensor | None = None  # of the optimiser, so far in this task
        self._session, self._wanted = session, wanted

    def begin(self) -> Step:
        return self._send(None)

    def reply(self, reply: Trained | Probed | Evaluated | Model | None) -> Step:
        """Hand the session what it asked for; what it wants next comes back."""
        self.replies += 1
        if isinstance(reply, Trained):
            self._state = reply.state
        return self._send(reply)

    def replay(self, replies: int, polls: Iterable[bool], fresh: Model | None, perform: Callable[[Any], Any]) -> Step:
        """Play the session from its start to where it had been given so many replies, to the same bits.

        A task's first request for a fresh model is answered with `fresh`, further ones with None, as the server does.
        """
        known, asked = iter(polls), self._wanted
        self._wanted = lambda: next(known, False)
        step = self.begin()
        while self.replies < replies and not isinstance(step, Report):
            if isinstance(step, Fetch):
                step = self.reply(fresh if self.fetches == 1 else None)
            else:
                step = self.reply(perform(step))
        self._wanted = asked
        return step

    def close(self) -> None:
        self._session.close()

    def _send(self, reply: Any) -> Step:
        try:
            command = self._session.send(reply)
            while isinstance(command, Poll):
                self.polls.append(self._wanted())
                command = self._session.send(self.polls[-1])
        except StopIteration as stop:
            return self._expected(stop.value, Report, "returns a Report")
        except Exception as error:
            raise self._failure(traceback.format_exc().rstrip()) from error
        if isinstance(command, Fetch):
            self.fetches += 1
        elif self._state is not None and isinstance(command, Train):
            command = replace(command, state=self._state)
        return self._expected(command, COMMANDS, "yields Train, Probe, Evaluate, Fetch or Poll")

    def _expected(self, step: Any, kind: Any, rule: str) -> Step:
        if not isinstance(step, kind):
            raise self._failure(f"a session {rule}, not {type(step).__name__}")
        found: Step = step
        return found

    def _failure(self, reason: str) -> DeviceError:
        task = self.task
        who = f"device {task.device} (task {task.id}, seed {task.seed})"
        return DeviceError(None, f"the method failed on {who}\n\n{reason}")


def samples(command: Train | Probe | Evaluate, work: Workload) -> float:
    """What a computation costs, in examples trained on."""
    if isinstance(command, Train):
        return command.work * work.samples(command.steps)
    if isinstance(command, Evaluate):
        return FORWARD * work.held
    if command.free:
        return 0.0
    passes = 1.0 if command.gradient else FORWARD
    return passes * work.samples(range(command.step, command.step + 1))
