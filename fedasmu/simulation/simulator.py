"""The simulator: drives the desk and the devices' sessions by a virtual clock.

It knows what a command costs before it knows its result: the order of events follows from the fleet and the seed alone.
So a training is handed to the pool when it begins in virtual time and waited for when it ends there, whatever else
happens in between; the bits do not depend on how many workers compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedasmu.algorithms.base import Learner
from fedasmu.events import Verdict
from fedasmu.pools import Pool
from fedasmu.protocol import Fetch, Report, Task, Workload
from fedasmu.server.desk import Desk
from fedasmu.session import Step, Work
from fedasmu.simulation.clock import ANSWER, ARRIVE, ASK, DONE, LOST, TICK, Clock, Kind
from fedasmu.simulation.device import Device
from fedasmu.simulation.fleet import Fleet
from fedasmu.simulation.memories import Memories
from fedasmu.simulation.patience import Patience


@dataclass
class Simulator:
    desk: Desk
    learner: Learner
    fleet: Fleet
    pool: Pool
    memories: Memories
    workload: Callable[[int], Workload]  # of a device
    period: float
    max_uploads: int
    max_time: float = math.inf

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.busy: dict[int, Device] = {}  # by the task that they work on
        self._retry = False  # whether a tick is scheduled because nobody could be started
        self._patience = Patience()
        self._timed, self._mortal = self.desk.server.schedule.timed, self.fleet.mortal

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def ended(self) -> Literal["uploads", "time", "fleet"] | None:
        """What ended it: either budget is used up, or no device will ever come back. None while it goes on."""
        if self.desk.server.counters.received >= self.max_uploads:
            return "uploads"
        if self.clock.next()[0] > self.max_time:
            return "time"
        return "fleet" if not self.busy and self.now > self.fleet.availability.horizon else None

    def begin(self) -> None:
        self.desk.begin(0.0)
        self.clock.schedule(0.0, TICK)

    def step(self) -> None:
        """Process the next event. If waiting for its result is interrupted, nothing has changed."""
        _, _, kind, task = self.clock.next()
        device = self.busy.get(task)
        result = None if device is None or device.ticket is None or kind is not DONE else self._await(device.ticket)
        self.clock.advance()
        if device is not None:
            self._handle(kind, device, result)
        elif kind is TICK:
            self._tick()
        if not self._timed:
            self._start()
        self.desk.settle()

    def finish(self) -> None:
        """Leave the tasks under way, and close the run."""
        for device in self.busy.values():
            device.abandon()
        self.busy.clear()
        self.desk.flush(self.now)

    def _await(self, ticket: int) -> Any:
        if not self.pool.ready(ticket):
            self.desk.record.flush()  # it may take long, and somebody may be watching
        return self.pool.result(ticket)

    def _handle(self, kind: Kind, device: Device, result: Any) -> None:
        if kind is DONE:
            device.ticket = None
            self._see_to(device, device.work.reply(result))
        elif kind is ASK:
            self._ask(device)
        elif kind is ANSWER:
            self._see_to(device, device.work.reply(device.answer))
        elif kind is ARRIVE and not self.fleet.fails(device.task.id):
            self._arrive(device)
        else:  # dead or offline, or bound to die but quicker than its nominal duration
            self._lose(device)

    def _tick(self) -> None:
        self._retry = False
        self._patience.tick(self.now)
        self._start()
        if self._timed:
            self.clock.schedule(self.now + self.period, TICK)

    def _start(self) -> None:
        """Start devices where the schedule has room. When nobody is there to start, try again a period later."""
        now = self.now
        for task in self.desk.tick(now, lambda device: self.fleet.availability.until(device, now) is not None):
            self._begin_task(task)
        if not self._timed and not self.busy and not self._retry:
            self._retry = True
            self.clock.schedule(now + self.period, TICK)

    def _begin_task(self, task: Task) -> None:
        device, down = self._open(task), self.desk.task_size(task)
        if self._mortal:
            nominal = device.nominal(down, self.desk.size(task, self.desk.server.transfer.part))
            death = self.fleet.death(task.id, task.device, self.now, nominal)
            if death < math.inf:
                self.clock.schedule(death, LOST, task.id)
        self._see_to(device, device.work.begin(), delay=device.profile.download(down))

    def _open(self, task: Task) -> Device:
        memory, load = self.memories.get(task.device), self.workload(task.device)
        session = self.learner.train(task, load, memory)
        work = Work(task, session, wanted=lambda: self.desk.wanted(task.id, task.device))
        profile, slowdown = self.fleet.profiles[task.device], self.fleet.slowdown(task.id)
        device = self.busy[task.id] = Device(task, work, load, memory, profile, slowdown, self.pool)
        return device

    def _see_to(self, device: Device, step: Step, delay: float = 0.0) -> None:
        """What the session wants next takes its time; or its report goes out."""
        now, task = self.clock.now + delay, device.task.id
        if isinstance(step, Report):
            device.report, part = self.desk.server.arriving(task, step)
            size = self.desk.sending(task, device.report, part)
            self.clock.schedule(now + device.profile.upload(size), ARRIVE, task)
        elif isinstance(step, Fetch):
            self.clock.schedule(now + device.profile.latency, ASK, task)
        else:
            done = now + device.seconds(step)
            device.submit(step, done)
            self.clock.schedule(done, DONE, task)

    def _ask(self, device: Device) -> None:
        task = device.task
        device.answer = self.desk.fetch(self.now, task.id, task.device)
        size = 0 if device.answer is None else self.desk.fresh_size(task.id)
        self.clock.schedule(self.now + device.profile.download(size), ANSWER, task.id)

    def _arrive(self, device: Device) -> None:
        task, report = device.task, device.report
        assert report is not None
        del self.busy[task.id]
        self._patience.renew()
        decision = self.desk.receive(self.now, task.id, task.device, report)
        if decision.verdict is not Verdict.REFUSED:  # what made a broken model is not worth remembering
            self.memories.put(task.device, device.memory)

    def _lose(self, device: Device) -> None:
        device.abandon()
        del self.busy[device.task.id]
        self.desk.lose(self.now, device.task.id)
        self._patience.loss(self.now)

    def state(self) -> dict[str, Any]:
        """A checkpoint."""
        return {
            "desk": self.desk.state(),
            "clock": self.clock.state(),
            "memories": self.memories.state(),
            "retry": self._retry,
            "works": [device.state() for device in self.busy.values()],
        }

    def kept(self) -> None:
        """The checkpoint that `state` was for is on the disk."""
        self.desk.kept()
        self.memories.kept()

    def restore(self, state: dict[str, Any]) -> None:
        self.desk.restore(state["desk"])
        self.clock.restore(state["clock"])
        self.memories.restore(state["memories"])
        self._retry = state["retry"]
        needed = {event[3]: event[0] for event in state["clock"]["events"] if event[2] != LOST}
        for line in state["works"]:
            entry = self.desk.server.ledger[line["task"]]
            device = self._open(entry.task)
            device.replay(line["replies"], line["polls"], entry.fresh, needed[entry.task.id])
            if device.report is not None:
                device.report, _ = self.desk.server.arriving(entry.task.id, device.report)
