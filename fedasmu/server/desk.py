"""The desk: the server at work. It keeps the record of a run, whoever drives it.

A driver (the simulator with its virtual clock, a service with a real one) tells it what reached the server and when.
The desk asks `Server` for the decision, writes the event lines, counts the bytes, and sends the model to evaluation
when that is due. So the files of a run are made in one place, and the same calls give the same files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fedasmu.errors import Interrupted
from fedasmu.events import Delivered, Event, Fetched, Lost, Measured, Renewed, Started, Verdict
from fedasmu.pools import Pool
from fedasmu.protocol import Model, Report, Task
from fedasmu.server.average import Average
from fedasmu.server.core import Aggregation, Decision, Server
from fedasmu.server.meter import Meter, Quick
from fedasmu.storage.record import Record
from fedasmu.storage.shelf import Shelf

Watcher = Callable[[Event | Measured], None]


class Desk:
    """`now` is the driver's time, in seconds from the beginning of the run; it never goes back."""

    def __init__(
        self,
        server: Server,
        record: Record,
        pool: Pool | None,  # that evaluates; None: the devices measure
        model_bytes: int,
        evaluate_every: int = 10,
        shelf: Shelf | None = None,  # of the method's server half
        metric: str = "accuracy",
        quick: Quick = Quick(),  # noqa: B008 - frozen
        average: Average | None = None,
    ) -> None:
        self.average = average
        self.server, self.record, self.model_bytes = server, record, model_bytes
        self._shelf = shelf
        self.meter = Meter(pool, self._tell, metric, quick)
        self.watchers: list[Watcher] = []  # told of every line of events.jsonl and of metrics.csv
        self._evaluate_every = evaluate_every
        self._sent: set[int] = set()  # tasks in flight whose upload is counted already

    @property
    def mean_staleness(self) -> float:
        return self.meter.tally.total_staleness / max(self.server.counters.received, 1)

    @property
    def judged(self) -> Model:
        """The model that the run is judged by, and hands out."""
        mean = None if self.average is None else self.average.model
        return self.server.model if mean is None else mean

    def size(self, task: Task, part: float) -> int:
        """Bytes of a model that travels for this task, when it takes this part of a whole one."""
        share = task.share * part
        return self.model_bytes if share == 1.0 else round(share * self.model_bytes)

    def task_size(self, task: Task) -> int:
        """Bytes of the model that a task in flight was sent with."""
        return self.size(task, self.server.ledger[task.id].part)

    def fresh_size(self, task: int) -> int:
        """Bytes of the fresh model that a task in flight was sent."""
        return round(self.server.ledger[task].fresh_part * self.model_bytes)

    def begin(self, now: float) -> None:
        """A run begins: both files anew, with the initial model's evaluation."""
        self.record.restart(self.meter.metric)
        self._evaluate(now)

    def tick(self, now: float, eligible: Callable[[int], bool] | None = None) -> list[Task]:
        """Start as many of the idle devices that are eligible as the schedule has room for."""
        return self._started(now, self.server.tick(eligible))

    def start(self, now: float, devices: Iterable[int]) -> list[Task]:
        """Start these devices, which must be idle."""
        return self._started(now, self.server.start(devices))

    def fetch(self, now: float, task: int, device: int) -> Model | None:
        """A device asks for a fresh model. Nothing is noted of a task that is not this device's, or not in flight."""
        if self.server.entry(task, device) is None:
            return None
        fresh = self.server.fetch(task, device)
        self._tell(Fetched(now, task, device, None if fresh is None else fresh.version))
        if fresh is not None:
            size = self.fresh_size(task)
            self.meter.tally.bytes_down += size
            self.meter.tally.bytes_fresh += size
        return fresh

    def wanted(self, task: int, device: int) -> bool:
        """Whether the server waits for this task's model, unfinished as it may be."""
        return self.server.wanted(task, device)

    def sending(self, task: int, report: Report, part: float = 1.0) -> int:
        """A device begins to send its report: its bytes, counted from now on whether it arrives or not.

        Its model takes this part of a whole one's.

        Only a simulation knows of this moment. Where it is not told, the bytes count when the report arrives.
        """
        size = self.size(self.server.ledger[task].task, part) + report.extra_bytes
        self._sent.add(task)
        self.meter.tally.bytes_up += size
        return size

    def receive(self, now: float, task: int, device: int, report: Report, part: float = 1.0) -> Decision:
        """A device delivers its task. An unknown one leaves no trace."""
        entry = self.server.entry(task, device)
        if entry is None:
            return Decision(Verdict.UNKNOWN)
        if task not in self._sent:
            self.sending(task, report, part)
        self._sent.discard(task)
        decision = self.server.receive(task, device, report)
        loss = _number(report.loss)
        self.meter.upload(math.nan if decision.verdict is Verdict.REFUSED else loss, decision.staleness)
        notes = report.remarks
        if report.measured is not None and decision.verdict is not Verdict.REFUSED:
            self.meter.survey.add(device, report.measured)
            notes |= {"own_accuracy": report.measured.score, "own_loss": report.measured.loss}
        base, staleness = entry.task.model.version, decision.staleness
        self._tell(Delivered(now, task, device, base, staleness, decision.verdict, loss, notes))
        self._renewed(now, decision.aggregation)
        if self.server.counters.received % self._evaluate_every == 0:
            self._evaluate(now)
        return decision

    def lose(self, now: float, task: int, device: int | None = None) -> Decision:
        """A task is given up: by its device, where one is named."""
        entry = self.server.entry(task, device)
        if entry is None:
            return Decision(Verdict.UNKNOWN)
        self._sent.discard(task)
        decision = self.server.lose(task)
        self._tell(Lost(now, task, entry.task.device))
        self._renewed(now, decision.aggregation)
        return decision

    def settle(self) -> None:
        """Write the lines of the evaluations that are done. A driver calls this between two events, now and then."""
        self.meter.drain(wait=False)

    def flush(self, now: float) -> None:
        """The run ends: aggregate what is left over, evaluate the final model, wait for the last line of metrics."""
        self._renewed(now, self.server.flush())
        self.meter.evaluate_last(self.judged, self.server.counters, now)

    def state(self) -> dict[str, Any]:
        """A checkpoint. Waits for the evaluations under way."""
        return {
            "server": self.server.state(),
            "meter": self.meter.state(),
            "record": self.record.state(),
            "sent": sorted(self._sent),
            "shelf": None if self._shelf is None else self._shelf.state(),
            "average": None if self.average is None else self.average.state(),
        }

    def kept(self) -> None:
        """The checkpoint that `state` was for is on the disk."""
        if self._shelf is not None:
            self._shelf.kept()

    def restore(self, state: dict[str, Any]) -> None:
        self.server.restore(state["server"])
        self.meter.restore(state["meter"])
        self.record.restore(state["record"])
        self._sent = set(state["sent"])
        if self._shelf is not None:
            self._shelf.restore(state["shelf"])
        if self.average is not None:
            self.average.restore(state["average"])

    def _started(self, now: float, tasks: list[Task]) -> list[Task]:
        for task in tasks:
            self._tell(Started(now, task.id, task.device, task.model.version))
            self.meter.tally.bytes_down += self.task_size(task)
        return tasks

    def _renewed(self, now: float, aggregation: Aggregation | None) -> None:
        if aggregation is not None:
            if self.average is not None:
                self.average.add(self.server.model, self.server.counters.received)
            tasks = [upload.task for upload in aggregation.uploads]
            weights, notes = list(aggregation.weights), aggregation.details
            self._tell(Renewed(now, aggregation.version, tasks, weights, notes))

    def _evaluate(self, now: float) -> None:
        self.meter.evaluate(self.judged, self.server.counters, now)

    def _tell(self, line: Event | Measured) -> None:
        self.record.write(line)
        for watch in self.watchers:
            watch(line)


def first_refusal(say: Callable[[str], None], beyond: float | None) -> Watcher:
    """A watcher that tells of the first upload that was refused, and of no other; `beyond` is the guard's limit."""
    why = ("" if beyond is None else f"did it go beyond guard.refuse = {beyond:g}, or ") + "is local.lr too high?"
    told = False

    def watch(line: Event | Measured) -> None:
        nonlocal told
        if isinstance(line, Delivered) and line.verdict is Verdict.REFUSED and not told:
            told = True
            say(f"device {line.device}'s model was refused (training loss {line.loss:.3g}): {why}")

    return watch


def observer(observe: Callable[[Desk, Event | Measured], None], desk: Desk, stop: Callable[[], None]) -> Watcher:
    """A watcher that shows the desk too, and asks to stop where it raises `Interrupted`.

    A line is written in the middle of an event: the run must see it to its end before it can be saved.
    """

    def watch(line: Event | Measured) -> None:
        try:
            observe(desk, line)
        except Interrupted:
            stop()

    return watch


def _number(loss: Any) -> float:
    """As a number, whatever a device sent for it."""
    try:
        return float(loss)
    except (TypeError, ValueError, OverflowError):
        return math.nan
