"""One worker process: how it is started, given work, heard and ended; and what it does all day."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedasmu.errors import DeviceError
from fedasmu.pools.contract import Answer, Job, Perform
from fedasmu.pools.lane import pack, unpack


class Worker:
    """A forked process and the shared memory through which its tensors travel."""

    def __init__(self, perform: Perform, lane_bytes: int) -> None:
        context = multiprocessing.get_context("fork")
        self.lane = torch.frombuffer(mmap.mmap(-1, lane_bytes), dtype=torch.uint8)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(perform, theirs, self.lane), daemon=True)
        self.process.start()
        theirs.close()
        self.ticket, self.job = -1, None  # type: int, Job | None

    def give(self, ticket: int, job: Job) -> None:
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
            raise self._died(job) from None
        self.ticket, self.job = ticket, job

    def take(self) -> tuple[int, Answer | DeviceError]:
        ticket, job = self.ticket, self.job
        assert job is not None
        self.job = None
        try:
            answer = unpack(self.connection.recv_bytes(), self.lane)
        except (EOFError, OSError):
            raise self._died(job) from None
        return ticket, job.failure(answer) if isinstance(answer, str) else answer

    def _died(self, job: Job) -> DeviceError:
        self.process.join()
        return job.failure(
            f"its worker process died (exit code {self.process.exitcode}); -9 usually means that memory ran out"
        )

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()  # a worker has nothing to lose, and a polite signal may come before it is ready for one
        self.process.join()


def _serve(perform: Perform, connection: Connection, lane: Tensor) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what happens
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    parent = os.getppid()
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
        except Exception:
            reply = traceback.format_exc()
        connection.send_bytes(pack(reply, lane))
