"""Who computes: this process, or worker processes. The answers are the same bits; only the waiting differs.

A computation is submitted as soon as it is known, with the virtual time at which its result is needed. Workers take
the one that is needed first, so that trainings that overlap in virtual time run side by side, and hardly one is done
that the end of the run makes unnecessary.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
from torch import Tensor

from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.protocol import Computation, Evaluated, Probe, Probed, Train, Trained

Answer = Trained | Probed | Evaluated
Perform = Callable[[Computation, int, int], Answer]
PATIENCE = 30.0  # seconds of silence before the watchdog says who is waited for


@dataclass(frozen=True, slots=True)
class Job:
    command: Computation
    device: int
    task: int
    seed: int

    def failure(self, trace: str) -> DeviceError:
        who = f"device {self.device} (task {self.task}, seed {self.seed})" if self.task >= 0 else "the evaluation"
        return DeviceError(self, f"{type(self.command).__name__} failed on {who}\n\n{trace.rstrip()}")


class Pool(Protocol):
    def submit(self, job: Job, needed: float) -> int:
        """Accept a computation whose result is needed at this virtual time; the number returned is its ticket."""

    def result(self, ticket: int) -> Answer:
        """Wait for a result and hand it over. Raises `Interrupted` if the user asks to stop meanwhile."""

    def ready(self, ticket: int) -> bool:
        """Whether `result` would answer at once."""

    def cancel(self, ticket: int) -> None:
        """The result is no longer wanted."""

    def close(self) -> None: ...


class Inline:
    """Everything in this process, when its result is asked for: breakpoints work, and nothing is computed in vain."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._jobs: dict[int, Job] = {}
        self._tickets = 0

    def submit(self, job: Job, needed: float) -> int:
        self._tickets += 1
        self._jobs[self._tickets] = job
        return self._tickets

    def result(self, ticket: int) -> Answer:
        job = self._jobs.pop(ticket)
        try:
            return self._perform(job.command, job.device, job.seed)
        except Exception as error:
            raise job.failure(traceback.format_exc()) from error

    def ready(self, ticket: int) -> bool:
        return True

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)

    def close(self) -> None:
        self._jobs.clear()


def timing_only(command: Computation, device: int, seed: int) -> Answer:
    """Computes nothing: for studies of schedules and fleets, where only the order of events matters."""
    if isinstance(command, Train):
        return Trained(command.vector, 0.0)
    if isinstance(command, Probe):
        return Probed(0.0, torch.zeros_like(command.vector) if command.gradient else None)
    return Evaluated(0.0, 0.0)


class Processes:
    """Worker processes, forked so that they share the data set's memory; models travel through shared memory too."""

    def __init__(
        self,
        perform: Perform,
        workers: int,
        vector_bytes: int,
        stopping: Callable[[], bool] = lambda: False,
        on_wait: Callable[[Job, float], None] = lambda job, seconds: None,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                f"workers = {workers}: worker processes need an operating system with fork; use --workers inline"
            )
        self._stopping, self._on_wait = stopping, on_wait
        self._jobs: dict[int, Job] = {}  # not yet given to a worker
        self._order: list[tuple[float, int]] = []
        self._done: dict[int, Answer | DeviceError] = {}
        self._unwanted: set[int] = set()
        self._tickets = 0
        self._workers = [Worker(perform, lane_bytes=4 * vector_bytes + (1 << 12)) for _ in range(workers)]
        self._idle = list(self._workers)

    def submit(self, job: Job, needed: float) -> int:
        self._tickets += 1
        self._jobs[self._tickets] = job
        heappush(self._order, (needed, self._tickets))
        self._collect(0.0)
        return self._tickets

    def result(self, ticket: int) -> Answer:
        self._promote(ticket)
        began = warned = time.monotonic()
        while ticket not in self._done:
            self._collect(0.25)
            if self._stopping():
                raise Interrupted
            if time.monotonic() - warned > PATIENCE and (job := self._find(ticket)) is not None:
                warned = time.monotonic()
                self._on_wait(job, warned - began)
        answer = self._done.pop(ticket)
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def ready(self, ticket: int) -> bool:
        self._collect(0.0)
        return ticket in self._done

    def cancel(self, ticket: int) -> None:
        if self._jobs.pop(ticket, None) is not None:
            self._order = [entry for entry in self._order if entry[1] != ticket]
            heapify(self._order)
        elif self._done.pop(ticket, None) is None:
            self._unwanted.add(ticket)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _promote(self, ticket: int) -> None:
        """What is waited for goes first, whenever it was thought to be needed."""
        if ticket in self._jobs and self._order[0][1] != ticket:
            self._order = [(-1.0 if entry[1] == ticket else entry[0], entry[1]) for entry in self._order]
            heapify(self._order)

    def _find(self, ticket: int) -> Job | None:
        return next((worker.job for worker in self._workers if worker.ticket == ticket), self._jobs.get(ticket))

    def _collect(self, timeout: float) -> None:
        """Give work to idle workers, take results from those that are done, and give them more."""
        self._feed()
        for ready in wait([worker.connection for worker in self._workers if worker.job], timeout):
            worker = next(worker for worker in self._workers if worker.connection is ready)
            ticket, answer = worker.take()
            self._idle.append(worker)
            if ticket in self._unwanted:
                self._unwanted.remove(ticket)
            else:
                self._done[ticket] = answer
        self._feed()

    def _feed(self) -> None:
        while self._idle and self._order:
            _, ticket = heappop(self._order)
            self._idle.pop().give(ticket, self._jobs.pop(ticket))


class Worker:
    """One forked process and the shared memory through which its tensors travel."""

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
            message = _pack((job.command, job.device, job.seed), self.lane)
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
            answer = _unpack(self.connection.recv_bytes(), self.lane)
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
            command, device, seed = _unpack(connection.recv_bytes(), lane)
        except EOFError:
            return
        try:
            reply: Any = perform(command, device, seed)
        except Exception:
            reply = traceback.format_exc()
        connection.send_bytes(_pack(reply, lane))


def _pack(message: Any, lane: Tensor) -> bytes:
    """Pickle between our own processes. Tensors go to the shared lane while there is room; their place is sent."""
    used = 0

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            nonlocal used
            if not isinstance(item, Tensor) or used + item.nbytes > len(lane) or not item.nbytes:
                return None
            start, used = used, used + -(-item.nbytes // 64) * 64
            lane[start : start + item.nbytes].view(item.dtype).view(item.shape).copy_(item)
            return start, item.nbytes, item.dtype, item.shape

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def _unpack(message: bytes, lane: Tensor) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Tensor:
            start, size, dtype, shape = place
            return lane[start : start + size].view(dtype).view(shape).clone()

    return Unpickler(io.BytesIO(message)).load()
