"""The server: versions, who is busy, what is too stale. It has no clock, no socket and no thread.

Plain calls in, decisions out: the simulator, a network service and the tests drive the same object. A ledger of tasks
is its only source of truth about versions; a device is never believed about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedasmu.algorithms.base import Aggregator
from fedasmu.errors import DeviceError
from fedasmu.events import Verdict
from fedasmu.protocol import Model, Report, Task, Upload
from fedasmu.schedule import Schedule
from fedasmu.seeding import derive
from fedasmu.server.idle import Idle
from fedasmu.server.inspection import next_vector, note_of, noted
from fedasmu.server.transfer import Transfer, Whole, arriving, sent


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A new version of the global model came to be."""

    version: int
    uploads: Sequence[Upload]
    weights: Sequence[float]
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    staleness: int = 0
    aggregation: Aggregation | None = None


@dataclass(slots=True)
class Counters:
    started: int = 0
    received: int = 0  # every upload of a task in flight, whatever became of it
    accepted: int = 0
    stale: int = 0
    refused: int = 0
    lost: int = 0


@dataclass(slots=True)
class InFlight:
    """A line of the ledger: a task in flight."""

    task: Task
    fresh: Model | None = None
    asked: bool = False
    urgent: bool = False  # the server waits for it, finished or not
    part: float = 1.0  # of a whole model's bytes that the task's took
    fresh_part: float = 1.0  # and the fresh one's

    @property
    def last(self) -> Model:
        """The newest model that its device was sent."""
        return self.fresh or self.task.model


@dataclass
class Server:
    model: Model
    schedule: Schedule
    aggregator: Aggregator
    devices: int
    seed: int
    learning_rate: Callable[[int], float]  # of the number of uploads received so far
    max_staleness: int | None = None
    pull_beyond: int | None = None  # at an aggregation, call in the tasks in flight that are staler than this
    transfer: Transfer = field(default_factory=Whole)
    counters: Counters = field(default_factory=Counters)
    ledger: dict[int, InFlight] = field(default_factory=dict)
    waiting: list[Upload] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._idle = Idle(self.devices, self.seed)

    def tick(self, eligible: Callable[[int], bool] | None = None) -> list[Task]:
        """Start as many idle devices, uniformly at random, as the schedule has room for."""
        wanted = self.schedule.vacancies(len(self.ledger), len(self.waiting))
        return [self._start(device) for device in self._idle.draw(wanted, eligible)] if wanted else []

    def start(self, devices: Iterable[int]) -> list[Task]:
        """Start these devices, which must be idle: for a driver that knows who is there and draws by itself."""
        started = []
        for device in devices:
            self._idle.take(device)
            started.append(self._start(device))
        return started

    def entry(self, task: int, device: int | None = None) -> InFlight | None:
        """The line of a task in flight; with a device, only if the task is that device's."""
        entry = self.ledger.get(task)
        return None if entry is None or device not in (None, entry.task.device) else entry

    def fetch(self, task: int, device: int) -> Model | None:
        """A device asks, in the middle of its task, for a newer model: once a task, and only if there is one."""
        entry = self.entry(task, device)
        if entry is None or entry.asked:
            return None
        entry.asked = True
        if self.model.version > entry.task.model.version:
            entry.fresh, entry.fresh_part = sent(self.model, self.transfer.reference(entry.task.model))
        return entry.fresh

    def wanted(self, task: int, device: int) -> bool:
        """Whether the server waits for this task's model, unfinished as it may be."""
        entry = self.entry(task, device)
        return entry is not None and entry.urgent

    def arriving(self, task: int, report: Report) -> tuple[Report, float]:
        """A report as it will arrive, and the part of a whole model's bytes that its model takes."""
        return arriving(report, self.transfer.reference(self.ledger[task].last))

    def receive(self, task: int, device: int, report: Report) -> Decision:
        """A device delivers its task."""
        entry = self._release(task, device)
        if entry is None:
            return Decision(Verdict.UNKNOWN)
        self.transfer.keep(device, task, entry.last)
        base = entry.task.model
        self._check_intact([base])
        staleness = self.model.version - base.version + 1
        upload = self._inspected(entry, staleness, report)
        self.counters.received += 1
        if upload is None or not self.aggregator.plausible(upload):
            self.counters.refused += 1
            verdict = Verdict.REFUSED
        elif self.max_staleness is not None and staleness > self.max_staleness:
            self.counters.stale += 1
            self.aggregator.discarded(upload)
            verdict = Verdict.STALE
        else:
            self.counters.accepted += 1
            self.waiting.append(upload)
            verdict = Verdict.ACCEPTED
        return Decision(verdict, staleness, self._aggregate_if_ready())

    def lose(self, task: int, device: int | None = None) -> Decision:
        """A device died, gave up, or its time is up: its place is free again, and nobody waits for it any longer."""
        if self._release(task, device) is None:
            return Decision(Verdict.UNKNOWN)
        self.counters.lost += 1
        return Decision(Verdict.LOST, aggregation=self._aggregate_if_ready())

    def flush(self) -> Aggregation | None:
        """Aggregate what a buffer or an unfinished round still holds, at the end of a run."""
        return self._aggregate() if self.waiting else None

    def _start(self, device: int) -> Task:
        lr = self.learning_rate(self.counters.received)
        note = self.aggregator.brief(device)
        number = self.counters.started
        seed = derive(self.seed, "task", number)
        model, part = sent(self.model, self.transfer.held(device))
        task = Task(number, device, model, lr, seed, note, self.aggregator.share(note))
        self.counters.started += 1
        self.ledger[task.id] = InFlight(task, part=part)
        return task

    def _inspected(self, entry: InFlight, staleness: int, report: Report) -> Upload | None:
        """What the ledger and the device's report make of it. None: the report has no model, or another note."""
        try:
            note = noted(report, self.model.vector, self.aggregator.note_type)
        except ValueError:
            return None
        task = entry.task
        return Upload(task.id, task.device, task.model, entry.fresh, staleness, report, task.lr, note)

    def _release(self, task: int, device: int | None) -> InFlight | None:
        entry = self.entry(task, device)
        if entry is not None:
            del self.ledger[task]
            self._idle.give_back(entry.task.device)
        return entry

    def _check_intact(self, models: Iterable[Model]) -> None:
        """Catch a method that writes into a global model, which other tasks and later versions are made from."""
        for model in models:
            if not model.intact:
                raise DeviceError(
                    None,
                    f"version {model.version} of the global model was written into: neither a session nor "
                    f"{type(self.aggregator).__qualname__} may change a model it was given; clone its vector first",
                )

    def _aggregate_if_ready(self) -> Aggregation | None:
        ready = self.waiting and self.schedule.ready(len(self.waiting), len(self.ledger))
        return self._aggregate() if ready and not self._calling_in() else None

    def _calling_in(self) -> bool:
        """Whether devices that fell too far behind are still to deliver what they have."""
        if self.pull_beyond is None:
            return False
        urgent = False
        for entry in self.ledger.values():  # in the order of their versions: the stalest come first
            if self.model.version - entry.task.model.version + 1 <= self.pull_beyond:
                break
            entry.urgent = urgent = True
        return urgent

    def _aggregate(self) -> Aggregation:
        uploads, self.waiting = self.waiting, []
        result = self.aggregator.aggregate(self.model, uploads)
        self._check_intact([self.model, *(upload.base for upload in uploads)])
        vector = next_vector(result, self.model.vector, type(self.aggregator))
        self.model = Model(self.model.version + 1, vector)
        return Aggregation(self.model.version, uploads, result.weights, dict(result.details))

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must keep."""
        return {
            "model": self.model,
            "counters": asdict(self.counters),
            **self._idle.state(),
            "ledger": [_line(entry) for entry in self.ledger.values()],
            "waiting": [replace(upload, note=None) for upload in self.waiting],  # it is in the report too
            "aggregator": self.aggregator.state(),
            "transfer": self.transfer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model = state["model"]
        self._idle.restore(state)
        self.counters = Counters(**state["counters"])
        self.ledger = {task.id: InFlight(task, *rest) for task, *rest in state["ledger"]}
        note_type = self.aggregator.note_type
        self.waiting = [replace(upload, note=note_of(upload.report, note_type)) for upload in state["waiting"]]
        self.aggregator.restore(state["aggregator"])
        self.transfer.restore(state.get("transfer"))


def _line(entry: InFlight) -> tuple[Any, ...]:
    return entry.task, entry.fresh, entry.asked, entry.urgent, entry.part, entry.fresh_part
