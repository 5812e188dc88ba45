"""One worker process: how it is started, given work, heard and ended; and what it does all day."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedasmu.pools.arena import Arena, Place
from fedasmu.pools.contract import Job, Perform
from fedasmu.pools.crew import Answered
from fedasmu.pools.lane import pack, unpack
from fedasmu.protocol import Probe, Train
from fedasmu.system.memory import keep_freed_memory

PR_SET_PDEATHSIG = 1  # of linux/prctl.h
LIGHT = 1 << 15  # bytes of a message that a pipe takes at once, whether or not the other side is reading


class Died(Exception):
    """The worker process is no more."""


class Given(NamedTuple):
    """What a worker has been asked, and where in the arena it may write its answer."""

    ticket: int
    job: Job
    slot: int | None


class Worker:
    """A forked process. Vectors travel through the arena, everything else through a pipe."""

    def __init__(self, perform: Perform, arena: Arena) -> None:
        context = multiprocessing.get_context("fork")
        self.arena = arena
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(perform, theirs, arena, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.given: deque[Given] = deque()

    def give(self, ticket: int, job: Job) -> bool:
        """Whether it was given: a large message waits until the worker has nothing else to do. Raises `Died`."""
        slot = self.arena.take() if _wants_slot(job) else None
        try:
            message = pack((job.command, job.device, job.seed, slot), self.arena.place)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._return(slot)
            raise job.failure(
                f"it cannot be sent to a worker process: {error}; compute in this process (workers: inline), or have "
                "in the command only what can be pickled, such as classes and functions at the top of a module"
            ) from None
        if self.given and len(message) > LIGHT:
            self._return(slot)
            return False
        try:
            self.connection.send_bytes(message)
        except OSError:
            self._return(slot)
            raise Died from None
        self.given.append(Given(ticket, job, slot))
        return True

    def take(self) -> Answered:
        """The answer to what it was given first. Raises `Died` if there will be none."""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise Died from None
        ticket, job, slot = self.given.popleft()
        adopted: list[Place] = []

        def adopt(place: Place) -> Tensor:
            adopted.append(place)
            return self.arena.adopt(place)

        answer, seconds = unpack(message, adopt)
        if not adopted:
            self._return(slot)
        return Answered(ticket, job, job.failure(answer) if isinstance(answer, str) else answer, seconds)

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()  # a worker has nothing to lose
        self.process.join()
        for given in self.given:
            self._return(given.slot)

    def _return(self, slot: int | None) -> None:
        if slot is not None:
            self.arena.release(slot)


def _wants_slot(job: Job) -> bool:
    """Whether the answer has a vector, and one that is worth it."""
    command = job.command
    return isinstance(command, Train) or (isinstance(command, Probe) and command.gradient)


def _serve(perform: Perform, connection: Connection, arena: Arena, parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the parent decides what happens
    _end_with_parent()
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        while not connection.poll(5.0):
            if os.getppid() != parent:  # the parent was killed, and could not say so
                return
        try:
            command, device, seed, slot = unpack(connection.recv_bytes(), arena.view)
        except EOFError:
            return
        began = time.thread_time()
        try:
            answer: Any = perform(command, device, seed)
        except BaseException:  # a model may also raise SystemExit
            answer = traceback.format_exc()
        slots = [] if slot is None else [slot]

        def place(tensor: Tensor, slots: list[int] = slots) -> Place | None:
            return arena.write(tensor, slots.pop()) if slots and arena.takes(tensor) else None

        connection.send_bytes(pack((answer, time.thread_time() - began), place))


def _end_with_parent() -> None:
    """Linux ends this process when the one that forked it is killed, also in the middle of a computation."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
