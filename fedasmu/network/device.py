"""A device: polls for a task, drives the method's session on its own examples, and delivers what came of it.

from fedasmu import Device
Device("https://fl.example:8443", invite="fa1...", data=lambda: (inputs, targets)).run()
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from fedasmu.encoding.displacement import Reference
from fedasmu.errors import DeviceError, Refused, UserError
from fedasmu.network import wire
from fedasmu.network.beats import Beats
from fedasmu.network.client import Client, Stopped
from fedasmu.network.connection import Ended, Reply
from fedasmu.network.drawer import Drawer, Parcel
from fedasmu.network.keys import Invite
from fedasmu.network.membership import Abandoned, Membership
from fedasmu.network.own import Own, Source
from fedasmu.protocol import Fetch, Model, Report, Task
from fedasmu.server.transfer import label
from fedasmu.session import Work, samples
from fedasmu.system.process import one_thread

FAILURES = 3  # tasks in a row, before a device gives up
NEXT_RUN = 30.0  # seconds between two looks whether there is one


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
        new_key: bool = False,
        model: Callable[[], nn.Module] | None = None,
        engine: str = "auto",
        ready: Callable[[], bool] = lambda: True,
        say: Callable[[str], None] = lambda line: None,
        stopping: threading.Event | None = None,
        seconds_per_sample: float = 0.0,  # that training takes at least: to play a slower device than this one is
    ) -> None:
        self._ready, self._name, self._new_key, self._rate, self.say = ready, name, new_key, seconds_per_sample, say
        given = None if not invite else Invite.read(invite)
        own = Own(data)
        self.stopping = stopping or threading.Event()
        self.drawer = Drawer(Path(state), say)
        pins = self.drawer.pins() or ([given.pin] if given else [])
        if not pins:
            raise UserError("--invite is missing: a device that joins for the first time needs one")
        self.client = Client(url, self.drawer.key, pins, stopping=self.stopping, say=say)
        self.membership = Membership(self.client, self.drawer, own, model, engine, say)
        self._invite = given
        self._failures = 0
        self._over = False  # and it was said
        self._last: tuple[int, Model] | None = None  # the last task, and the last model that was sent for it
        self._computed = 0.0  # seconds, for that task
        self._held: Reference | None = None  # of the last delivered task: what the server may tell the next one from
        self.tasks = 0  # delivered

    def run(self, stay: bool = False) -> None:
        """Work until the run is over, or `stop` is called. Who stays waits for the next run at the same address."""
        try:
            self._until_over()
            while stay and not self.stopping.wait(NEXT_RUN):
                self._until_over()
        except Stopped:
            pass
        finally:
            self.close()

    def _until_over(self) -> None:
        try:
            self.join()
            while not self.stopping.is_set():
                self.step()
                self._over = False
        except Ended as ended:
            if ended.code != "over":
                raise
            if not self._over:
                self.say(str(ended))
            self._over = True

    def stop(self) -> None:
        """From another thread: the task under way is left, and trained again when the device comes back."""
        self.stopping.set()

    def close(self) -> None:
        """Let go of the connection, and of the state folder for another process."""
        self.client.close()
        self.drawer.close()

    def join(self) -> None:
        """Enrol if that is due, open a visit, and send what was not acknowledged before."""
        self.membership.begin(self._invite, self._name, self._new_key)
        self._held = None  # it may be another run
        self._new_key = False
        self._deliver_parcel()

    def step(self) -> bool:
        """Wait for a task and do it. False if there was none for now."""
        if not self._ready():
            self.stopping.wait(5.0)
            return False
        self.membership.renew()
        poll, held = self.membership.poll, self._held
        target = f"/v1/task?wait={poll:g}" + (f"&holds={held.label}" if held else "")
        with Beats(self.client, self.membership.beat, self.membership.revisit) as beats:
            download = partial(self.client.download, "GET", target, wait=poll, heard=beats.heard)
            reply = self.membership.ask(download)
            if reply.status != 200:
                self.stopping.wait(reply.pause)
                return False
            task = self._read_task(reply, held)
            if task is None or not self._done(task, beats.lost):
                return False
        self._failures = 0
        return self._deliver_parcel()

    def _read_task(self, reply: Reply, held: Reference | None) -> Task | None:
        """None: the server tells its model from another one than this device holds. The whole is asked for then."""
        try:
            return self.membership.read(wire.read_task, reply, held)
        except UserError:
            if held is None:
                raise
            self._held = None
            return None

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
        equipment = self.membership.equipment
        memory = self.drawer.memory()
        polls, given, computed = iter(range(1 << 30)), task.model, 0.0

        def wanted() -> bool:
            question = self.membership.request("POST", f"/v1/tasks/{task.id}/beat?poll={next(polls)}")
            return bool(self.membership.of_task(question).table.get("wanted"))

        work = Work(task, equipment.learner.train(task, equipment.work, memory), wanted)
        step = work.begin()
        while not isinstance(step, Report):
            if self.stopping.is_set():
                raise Stopped
            if lost.is_set():
                raise Abandoned
            if isinstance(step, Fetch):
                fresh = self._fresh(task, work.fetches - 1)
                given, step = fresh or given, work.reply(fresh)
            else:
                began = time.monotonic()
                reply = equipment.trainer.perform(step, 0, task.seed)
                self.stopping.wait(began + self._rate * samples(step, equipment.work) - time.monotonic())
                computed += time.monotonic() - began
                step = work.reply(reply)
        self._last, self._computed = (task.id, given), computed
        last = equipment.reference(given, str(given.version))
        self.drawer.post(Parcel(task.id, wire.report_frame(step, equipment.attachments, last), memory))

    def _fresh(self, task: Task, ask: int) -> Model | None:
        target = f"/v1/tasks/{task.id}/fresh?ask={ask}"
        reply = self.membership.of_task(lambda: self.client.download("POST", target))
        base = self.membership.equipment.reference(task.model, str(task.model.version))
        return None if reply.status == 204 else self.membership.read(wire.read_model, reply, base)

    def _deliver_parcel(self) -> bool:
        """Send what is in the outbox until the server has said what became of it."""
        parcel = self.drawer.parcel()
        if parcel is None:
            return False
        try:
            target = f"/v1/tasks/{parcel.task}/result"
            known = self._last is not None and self._last[0] == parcel.task
            computed = {"Fedasmu-Training": f"{self._computed:.6f}"} if known else {}
            outcome = self.membership.of_task(lambda: self.client.upload(target, parcel.frame, computed)).table
        except Abandoned:
            outcome = {}
        verdict = outcome.get("verdict")
        self.drawer.settle(parcel, keep=verdict in ("accepted", "stale"))
        if verdict is not None:
            self.tasks += 1
            self._held = self._held_after(parcel.task)
        self.say(f"task {parcel.task}: {verdict or 'given up by the server'}")
        return verdict is not None

    def _held_after(self, task: int) -> Reference | None:
        """What both sides have now that this task is delivered; None after one of an earlier process."""
        if self._last is None or self._last[0] != task:
            return None
        return self.membership.equipment.reference(self._last[1], label(*self._last))

    def _fail(self, task: Task, trace: str) -> None:
        self._failures += 1
        self.membership.ask(self.membership.request("POST", f"/v1/tasks/{task.id}/fail", trace.encode()[-8192:]))
        self.say(f"task {task.id} failed: {trace.strip().splitlines()[-1]}")
        if self._failures >= FAILURES:
            raise DeviceError(None, f"{FAILURES} tasks in a row failed on this device\n\n{trace.rstrip()}")
