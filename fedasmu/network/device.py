"""A device: polls for a task, drives the method's session on its own examples, and delivers what came of it.

from fedasmu import Device
Device("https://fl.example:8443", invite="fa1...", data=lambda: (inputs, targets)).run()
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fedasmu.errors import DeviceError, Refused, UserError
from fedasmu.network import wire
from fedasmu.network.beats import Beats
from fedasmu.network.client import Client, Stopped
from fedasmu.network.connection import Ended, Reply
from fedasmu.network.drawer import Drawer, Parcel
from fedasmu.network.equipment import Equipment, Source, examples, source
from fedasmu.network.keys import Invite
from fedasmu.network.terms import Terms
from fedasmu.process import one_thread
from fedasmu.protocol import Fetch, Model, Report, Task
from fedasmu.session import Work, samples

FIRST_CONTACT = 20.0  # seconds without an answer before a new device gives up
FAILURES = 3  # tasks in a row, before a device gives up
QUARRELS = 5  # visits in a row that another process with the same key ended
BUILDING = threading.Lock()  # torch traces a network by patching itself, for all threads
HEADROOM = 1 << 20  # bytes of a task besides its tensors

Read = TypeVar("Read", Task, Model)


class Abandoned(Exception):
    """The server has given this task up: there is no point in finishing it."""


class Device:
    """A member of a federation. Its data never leave it: only models, losses and the method's few numbers do."""

    def __init__(
        self,
        url: str,
        data: Source | str,
        *,
        invite: str | None = None,
        state: str | Path = "fedasmu-device",
        name: str | None = None,
        model: Callable[[], nn.Module] | None = None,
        engine: str = "auto",
        ready: Callable[[], bool] = lambda: True,
        say: Callable[[str], None] = lambda line: None,
        stopping: threading.Event | None = None,
        seconds_per_sample: float = 0.0,  # that training takes at least: to play a slower device than this one is
    ) -> None:
        self._rate = seconds_per_sample
        self._data, self._model, self._engine, self._ready, self.say = data, model, engine, ready, say
        given = None if not invite else Invite.read(invite)
        self._source = source(data) if isinstance(data, str) else data
        self._loaded = examples(self._source)
        self.stopping = stopping or threading.Event()
        self.drawer = Drawer(Path(state), say)
        pins = self.drawer.pins() or ([given.pin] if given else [])
        if not pins:
            raise UserError("--invite is missing: a device that joins for the first time needs one")
        self.client = Client(url, self.drawer.key, pins, stopping=self.stopping, say=say)
        self._invite, self._name = given, name
        self._equipment: Equipment | None = None
        self._terms: Terms | None = None
        self._beat, self._poll = 20.0, 25.0
        self._failures = self._quarrels = 0
        self.tasks = 0  # delivered

    def run(self) -> None:
        """Work until the run is over, or `stop` is called."""
        try:
            self.join()
            while not self.stopping.is_set():
                self.step()
        except Stopped:
            pass
        except Ended as ended:
            if ended.code != "over":
                raise
            self.say(str(ended))
        finally:
            self.close()

    def stop(self) -> None:
        """From another thread: the task under way is left, and trained again when the device comes back."""
        self.stopping.set()

    def close(self) -> None:
        self.client.close()
        self.drawer.close()

    def join(self) -> None:
        """Enrol if that is due, open a visit, and send what was not acknowledged before."""
        self.client.patience = FIRST_CONTACT
        if self._invite is not None and not self.drawer.pins():
            name = self._name or f"device-{self.drawer.key.public.hex()[:12]}"
            self.client.enrol(self._invite, name, len(self._loaded[1]))
            self.drawer.keep_pins(self.client.pins)
        self._hello()
        self.client.patience = float("inf")
        self._deliver_parcel()

    def step(self) -> bool:
        """Wait for a task and do it. False if there was none for now."""
        if not self._ready():
            self.stopping.wait(5.0)
            return False
        with Beats(self.client, self._beat) as beats:
            target = f"/v1/task?wait={self._poll:g}"
            reply = self._ask(lambda: self.client.download("GET", target, wait=self._poll, heard=beats.heard))
            if reply.status != 200:
                self.stopping.wait(reply.pause)
                return False
            task = self._read(wire.read_task, reply)
            if not self._done(task, beats.lost):
                return False
        self._failures = 0
        return self._deliver_parcel()

    def _done(self, task: Task, lost: threading.Event) -> bool:
        """Whether the task's report is in the outbox."""
        try:
            with one_thread():
                self._work(task, lost)
        except Exception as error:
            cause = error.__cause__ or error  # what is raised in a poll comes as the session's failure
            if isinstance(cause, Stopped | UserError | Refused):
                raise cause from None
            if not isinstance(cause, Abandoned):
                self._fail(task, traceback.format_exc())
                return False
            self.say(f"task {task.id} was given up by the server")
            return False
        return True

    def _work(self, task: Task, lost: threading.Event) -> None:
        """The session, with this device in the place of the virtual clock."""
        equipment = self._equipment
        assert equipment is not None
        memory = self.drawer.memory()
        polls = iter(range(1 << 30))

        def wanted() -> bool:
            reply = self._of_task(self._request("POST", f"/v1/tasks/{task.id}/beat?poll={next(polls)}"))
            return bool(reply.table.get("wanted"))

        work = Work(task, equipment.learner.train(task, equipment.work, memory), wanted)
        step = work.begin()
        while not isinstance(step, Report):
            if self.stopping.is_set():
                raise Stopped
            if lost.is_set():
                raise Abandoned
            if isinstance(step, Fetch):
                step = work.reply(self._fresh(task, work.fetches - 1))
            else:
                began = time.monotonic()
                reply = equipment.trainer.perform(step, 0, task.seed)
                self.stopping.wait(began + self._rate * samples(step, equipment.work) - time.monotonic())
                step = work.reply(reply)
        self.drawer.post(Parcel(task.id, wire.report_frame(step, equipment.attachments), memory))

    def _fresh(self, task: Task, ask: int) -> Model | None:
        target = f"/v1/tasks/{task.id}/fresh?ask={ask}"
        reply = self._of_task(lambda: self.client.download("POST", target))
        return None if reply.status == 204 else self._read(wire.read_model, reply)

    def _deliver_parcel(self) -> bool:
        """Send what is in the outbox until the server has said what became of it."""
        parcel = self.drawer.parcel()
        if parcel is None:
            return False
        try:
            outcome = self._of_task(self._request("PUT", f"/v1/tasks/{parcel.task}/result", parcel.frame)).table
        except Abandoned:
            outcome = {}
        verdict = outcome.get("verdict")
        self.drawer.settle(parcel, keep=verdict in ("accepted", "stale"))
        self.tasks += verdict is not None
        self.say(f"task {parcel.task}: {verdict or 'given up by the server'}")
        return verdict is not None

    def _read(self, read: Callable[[bytes, int], Read], reply: Reply) -> Read:
        """A frame of the server's, which is believed no more than it believes us."""
        assert self._equipment is not None
        try:
            return read(reply.body, self._equipment.layout.size)
        except wire.Malformed as error:
            raise UserError(f"{self.client.url}: what the server sends is no model for this device: {error}") from None

    def _of_task(self, attempt: Callable[[], Reply]) -> Reply:
        reply = self._ask(attempt)
        if reply.status >= 400:
            raise Abandoned
        return reply

    def _request(self, method: str, target: str, body: bytes = b"") -> Callable[[], Reply]:
        return lambda: self.client.request(method, target, body)

    def _ask(self, attempt: Callable[[], Reply]) -> Reply:
        """A signed request. A server that was started again does not know us: then a new visit, and once more."""
        while True:
            reply = attempt()
            code = reply.table.get("error") if reply.status >= 400 else None
            if code in ("over", "revoked"):
                raise Ended(code, str(reply.table.get("say")))
            if reply.status != 401:
                self._quarrels = 0
                return reply
            self._quarrels += 1
            if self._quarrels > QUARRELS:
                raise UserError("another process uses this device's key: stop one of them, and give each its own state")
            self._hello()

    def _hello(self) -> None:
        welcome = self.client.hello(len(self._loaded[1]))
        terms = Terms.read(welcome.get("recipe"), self.client.url)
        self.drawer.enter(self.client.run)
        if self._equipment is None or terms != self._terms:
            self._terms = terms
            with BUILDING:
                here = self._loaded, self.client.device
                self._equipment = Equipment(terms, *here, self.client.url, self._model, self._engine)
            self.say(f"device {self.client.device}: {terms.model}, {terms.algorithm['name']}; {self._equipment.engine}")
        self.client.largest = 8 * self._equipment.layout.bytes + HEADROOM
        self._beat, self._poll = _bounded(welcome.get("beat"), 20.0), _bounded(welcome.get("poll"), 25.0)
        self.drawer.keep_pins(self.client.pins)

    def _fail(self, task: Task, trace: str) -> None:
        self._failures += 1
        self._ask(self._request("POST", f"/v1/tasks/{task.id}/fail", trace.encode()[-8192:]))
        self.say(f"task {task.id} failed: {trace.strip().splitlines()[-1]}")
        if self._failures >= FAILURES:
            raise DeviceError(None, f"{FAILURES} tasks in a row failed on this device\n\n{trace.rstrip()}")


def _bounded(value: Any, default: float) -> float:
    """A number of seconds that a server may ask for."""
    return min(max(float(value), 0.01), 60.0) if isinstance(value, int | float) else default
