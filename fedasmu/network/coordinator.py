"""The driver with a real clock: who is present, who gets a task, and for how long.

It has no socket, no thread and no clock: `now` is handed in, in seconds of this run. Whatever changes the server goes
through `Acts`, so that it is written before anybody is told of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedasmu.encoding.displacement import Reference
from fedasmu.events import Verdict
from fedasmu.network.acts import Acts, Outcome, plain
from fedasmu.network.leases import Leases
from fedasmu.network.presence import Presence
from fedasmu.protocol import Model, Task
from fedasmu.roster import Member
from fedasmu.run.links import Way
from fedasmu.seeding import derive
from fedasmu.server.core import InFlight
from fedasmu.settings.deployment import NetworkSettings

DELIVERIES = 8  # of models to one device for one task: its own, a fresh one, and repeats where a reply was lost
PARTS = 32  # a download that breaks off and goes on must have brought this part of a model at least


class Gone(Exception):
    """This task is not this device's, or not any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the coordinator is told of the recipe."""

    seed: int
    period: float  # seconds between two triggers
    uploads: int  # that end the run
    time: float  # seconds that end the run
    settings: NetworkSettings


class Coordinator:
    def __init__(self, acts: Acts, plan: Plan) -> None:
        self.acts, self.plan = acts, plan
        self.desk, self.server = acts.desk, acts.desk.server
        self.leases = Leases(plan.settings, rounds=not self.server.schedule.timed)
        self.present: dict[int, str] = {}  # devices with an open poll, and the label of the model that each holds
        self.ways: dict[int, Way] = {}  # by task, of those delivered since these were last written
        self.draining = False  # no new tasks: the server is about to stop
        self.presence = Presence(max(plan.settings.lease, 2 * plan.settings.poll))
        self._next = 0.0  # of the next trigger, before which no device starts
        self._gather: float | None = None  # until when a cohort is waited for

    @property
    def now(self) -> float:
        return self.acts.now

    @property
    def finished(self) -> bool:
        return (
            self.acts.flushed or self.server.counters.received >= self.plan.uploads or self.acts.now >= self.plan.time
        )

    def begin(self, now: float) -> None:
        self.acts.do("begin", now, roster=self.acts.members())

    def go_on(self) -> None:
        """After a restart: nobody is late, since nobody could be heard."""
        now = self.acts.now
        self._next = now
        for entry in self.server.ledger.values():
            self.leases.grant(entry.task.id, entry.task.device, now)
            self.leases.renew(entry.task.id, now)

    def seat(self, device: int, member: Member, now: float) -> None:
        """A device has taken its place, or has another number of examples now."""
        if self.acts.roster[device] != member:
            self.acts.do("seat", now, device=device, member=plain(member))

    def arrive(self, device: int, now: float, holds: str = "") -> Task | None:
        """A poll opens: its open task at once, if it has one; else the device is present."""
        self.presence.sign(device, now)
        if (number := self.acts.tasks.get(device)) is None:
            self.present[device] = holds
            return None
        self._count(number, now)
        self.leases.renew(number, now)
        return self.server.ledger[number].task

    def leave(self, device: int) -> None:
        self.present.pop(device, None)

    def advance(self, now: float) -> list[Task]:
        """Give up what is overdue, then start devices where there is room. The tasks that are now to be handed out."""
        for overdue in self.leases.over(now):
            self.lose(overdue, now)
        self.acts.now = max(self.acts.now, now)
        if self.finished or self.draining or (self.acts.ledger.full and not self.acts.ledger.probe()):
            return []
        devices = self._chosen(now)
        return self.start(devices, now) if devices else []

    def start(self, devices: list[int], now: float) -> list[Task]:
        """Start these devices. Those that have said to hold another model than the server knows of get a whole one."""
        known = self.server.transfer.label
        without = [device for device in devices if self.present.get(device, known(device)) != known(device)]
        forget: dict[str, Any] = {"forget": without} if without else {}
        self.acts.do("start", now, devices=devices, **forget)
        tasks = [self.server.ledger[self.acts.tasks[device]].task for device in devices]
        for task in tasks:
            self.leave(task.device)
            self.leases.grant(task.id, task.device, now)
        return tasks

    def due(self) -> float:
        """When `advance` is wanted next, at the latest."""
        waiting = self.present and not self.finished and self._vacancies()
        start = self._next if self._gather is None else self._gather
        start = max(start, self.leases.awake(self.present)) if waiting else math.inf
        return min(self.leases.due(), start, self.plan.time)

    def known(self, device: int, label: str) -> Reference | None:
        """What a device with an open task has, if this is its label: from before the task, or of the task."""
        transfer, task = self.server.transfer, self.acts.tasks[device]
        if not label:
            return None
        if label == transfer.label(device):
            return transfer.held(device)
        base = transfer.reference(self.server.ledger[task].task.model)
        return base if base is not None and base.label == label else None

    def fresh(self, device: int, task: int, ask: int, now: float) -> Model | None:
        """A task's `ask`-th request for a fresh model. A repeat gets the same answer and changes nothing."""
        entry = self._entry(device, task, now)
        asked = self.acts.asks.get(task, 0)
        if not 0 <= ask <= asked:
            raise Gone
        if ask == asked:
            self.acts.do("fetch", now, task=task)
        if ask or entry.fresh is None:
            return None
        self._count(task, now)
        return entry.fresh

    def again(self, device: int, version: int, first: int, now: float) -> Model:
        """A model of the device's open task, to be sent once more from its `first` byte on."""
        task = self.acts.tasks.get(device, -1)
        entry = self._entry(device, task, now)
        lease = self.leases.find(task)
        for model in (entry.task.model, entry.fresh):
            if model is not None and model.version == version and lease is not None:
                if first < lease.reached + max(1, 4 * len(model.vector) // PARTS):  # nothing to speak of has come
                    self._count(task, now)
                lease.reached = first
                return model
        raise Gone

    def beat(self, device: int, task: int, now: float) -> bool:
        """A sign of life. Whether the server waits for the model, unfinished as it may be."""
        self._entry(device, task, now)
        return self.desk.wanted(task, device)

    def outcome(self, device: int, task: int) -> Outcome | None:
        """What became of a task delivered before; None if it is still open."""
        known = self.acts.outcomes.get(device)
        if known is not None and known.task == task:
            return known
        if self.server.entry(task, device) is None:
            raise Gone
        return None

    def deliver(self, device: int, task: int, body: bytes, signed: dict[str, Any], now: float) -> Outcome:
        """An upload that was read and found well-formed. A second one of the same task changes nothing."""
        if (known := self.outcome(device, task)) is not None:
            return known
        self.acts.do("upload", now, body, task=task, signed=signed)
        outcome = self.acts.outcomes[device]
        self.leases.end(task, now, good=outcome.verdict != Verdict.REFUSED)
        return outcome

    def note(self, device: int, task: int, upload: float, training: float, size: int) -> None:
        """How many seconds the parts of a task took that is about to be delivered, with so many bytes of tensors."""
        if (entry := self.server.entry(task, device)) is not None:
            down = self.desk.task_size(entry.task) + (self.desk.fresh_size(task) if entry.fresh else 0)
            up = self.desk.size(entry.task, size / self.desk.model_bytes)
            self.ways[task] = Way(task, round(upload, 6), training, down, up)

    def lose(self, task: int, now: float) -> None:
        if task in self.server.ledger:
            self.acts.do("lose", now, task=task)
            self.leases.end(task, now, good=False)

    def end(self, now: float) -> None:
        """The run is over: aggregate what is left, and evaluate the last model."""
        if not self.acts.flushed:
            self.acts.do("flush", now)

    def _entry(self, device: int, task: int, now: float) -> InFlight:
        entry = self.server.entry(task, device)
        if entry is None:
            raise Gone
        self.presence.sign(device, now)
        self.leases.renew(task, now)
        return entry

    def _count(self, task: int, now: float) -> None:
        """One more model leaves for this task. A device that asks without end loses it."""
        lease = self.leases.find(task)
        if lease is None:
            return
        lease.deliveries, lease.reached = lease.deliveries + 1, 0
        if lease.deliveries > DELIVERIES:
            self.lose(task, now)
            raise Gone

    def _vacancies(self) -> int:
        return self.server.schedule.vacancies(len(self.server.ledger), len(self.server.waiting))

    def _chosen(self, now: float) -> list[int]:
        """Whom to start now: uniformly among those present, as the paper has it."""
        if now < self._next:
            return []
        wanted, first = self._vacancies(), self.server.counters.started
        there = sorted(device for device in self.present if wanted and not self.leases.rests(device, now))
        if there and self._waits(len(there), wanted, now):
            return []
        if self.server.schedule.timed and (there or first):  # as in a simulation, one that finds nobody passes too
            self._next += self.plan.period * math.floor((now - self._next) / self.plan.period + 1)
        if not there:
            return []
        self._gather = None
        picked = []
        for number in range(min(wanted, len(there))):
            picked.append(there.pop(derive(self.plan.seed, "present", first + number) % len(there)))
        return picked

    def _waits(self, there: int, wanted: int, now: float) -> bool:
        """Whether to wait for more: a round for its whole cohort, the first start for all that it may start."""
        first = not self.server.counters.started
        if self.server.schedule.timed and not first:
            return False
        if not first:
            wanted = min(wanted, self.presence.alive(now, self.plan.settings.gather))
        if there >= wanted:
            return False
        if self._gather is None:
            self._gather = now + self.plan.settings.gather
        return now < self._gather
