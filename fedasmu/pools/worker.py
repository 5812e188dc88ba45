"""One worker process: how it is started, given work, heard and ended; and what it does all day."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedasmu.errors import DeviceError
from fedasmu.pools.contract import Answer, Job, Perform
from fedasmu.pools.lane import pack, unpack

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class Worker:
    """A forked process and the shared memory through which its tensors travel."""

    def __init__(self, perform: Perform, lane_bytes: int) -> None:
        context = multiprocessing.get_context("fork")
        self.lane = torch.frombuffer(mmap.mmap(-1, lane_bytes), dtype=torch.uint8)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(perform, theirs, self.lane, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.ticket, self.job = -1, None  # type: int, Job | None

    def give(self, ticket: int, job: Job) -> None:
        """Raises `Died` if there is nobody to give it to any more."""
        try:
            message = pack((job.command, job.device, job.seed), self.lane)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise job.failure(
                f"it cannot be sent to a worker process: {error}; use --workers inline, or in the command only what "
                "can be pickled, such as classes and functions at the top of a module"
            ) from None
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise Died from None
        self.ticket, self.job = ticket, job

    def take(self) -> Answer | DeviceError:
        """The answer to what it was given. Raises `Died` if there will be none."""
        assert self.job is not None
        try:
            answer = unpack(self.connection.recv_bytes(), self.lane)
        except (EOFError, OSError):
            raise Died from None
        job, self.job = self.job, None
        return job.failure(answer) if isinstance(answer, str) else answer

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()  # a worker has nothing to lose
        self.process.join()


class Died(Exception):
    """The worker process is no more."""


def _serve(perform: Perform, connection: Connection, lane: Tensor, parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the parent decides what happens
    _end_with_parent()
    torch.set_num_threads(1)
    while True:
        while not connection.poll(5.0):
            if os.getppid() != parent:  # the parent was killed, and could not say so
                return
        try:
            command, device, seed = unpack(connection.recv_bytes(), lane)
        except EOFError:
            return
        try:
            reply: Any = perform(command, device, seed)
        except BaseException:  # a model may also raise SystemExit
            reply = traceback.format_exc()
        connection.send_bytes(pack(reply, lane))


def _end_with_parent() -> None:
    """Linux ends this process when the one that forked it is killed, also in the middle of a computation."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
