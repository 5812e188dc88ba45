"""The simulator: drives the server and the devices' sessions by a virtual clock.

It knows what a command costs before it knows its result: the order of events follows from the fleet and the seed alone.
So a training is handed to the pool when it begins in virtual time and waited for when it ends there, whatever else
happens in between; the bits do not depend on how many workers compute.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedasmu.algorithms.base import Learner
from fedasmu.errors import DeviceError
from fedasmu.pools import Job, Pool
from fedasmu.protocol import Fetch, Memory, Model, Poll, Probe, Report, Session, Task, Train, Workload
from fedasmu.record import Record
from fedasmu.server import Aggregation, Server, Verdict
from fedasmu.simulation.clock import Clock, Event, Kind
from fedasmu.simulation.fleet import Fleet
from fedasmu.simulation.memories import Memories
from fedasmu.simulation.meter import Meter

FORWARD = 1 / 3  # of a training step: a loss without its gradient costs one pass of three


@dataclass(slots=True)
class Run:
    """A task under way on a simulated device."""

    task: Task
    work: Workload
    session: Session
    memory: Memory
    slowdown: float
    replies: int = 0  # handed to the session so far
    answer: Model | None = None  # to its request for a fresh model
    polls: list[bool] = field(default_factory=list)  # answers to its polls
    ticket: int | None = None
    report: Report | None = None


@dataclass
class Simulator:
    server: Server
    learner: Learner
    fleet: Fleet
    pool: Pool
    record: Record
    memories: Memories
    workload: Callable[[int], Workload]  # of a device
    period: float
    model_bytes: int
    max_uploads: int
    max_time: float = math.inf
    evaluate_every: int = 10
    observe: Callable[[Simulator], None] = lambda simulator: None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.meter = Meter(self.pool, self.record)
        self.runs: dict[int, Run] = {}
        self._retry = False  # whether a tick is scheduled because nobody could be started

    @property
    def finished(self) -> bool:
        """The budget is used up, or no device will ever come back."""
        time_is_up = self.clock.next().time > self.max_time
        return self.server.counters.received >= self.max_uploads or time_is_up or self._deserted

    @property
    def mean_staleness(self) -> float:
        return self.meter.tally.total_staleness / max(self.server.counters.received, 1)

    @property
    def _deserted(self) -> bool:
        return not self.runs and self.clock.now > self.fleet.availability.horizon

    def begin(self) -> None:
        self._evaluate()
        self.clock.schedule(0.0, Kind.TICK)

    def step(self) -> None:
        """Process the next event. If waiting for its result is interrupted, nothing has changed."""
        event = self.clock.next()
        result = self._await(event)
        self.clock.advance()
        if event.kind is Kind.TICK:
            self._tick()
        elif (run := self.runs.get(event.task)) is not None:
            self._handle(event.kind, run, result)
        if not self.server.schedule.timed:
            self._start()
        self.meter.drain(wait=False)

    def finish(self) -> None:
        """Aggregate what is left over, evaluate the final model, and wait for the last line of the metrics."""
        for run in self.runs.values():
            self._abandon(run)
        self.runs.clear()
        if (aggregation := self.server.flush()) is not None:
            self._aggregated(aggregation)
        self.meter.evaluate_last(self.server.model, self.server.counters, self.clock.now)

    def _await(self, event: Event) -> Any:
        run = self.runs.get(event.task)
        if event.kind is not Kind.DONE or run is None or run.ticket is None:
            return None
        return self.pool.result(run.ticket)

    def _handle(self, kind: Kind, run: Run, result: Any) -> None:
        if kind is Kind.DONE:
            run.ticket = None
            self._reply(run, result)
        elif kind is Kind.ASK:
            self._ask(run)
        elif kind is Kind.ANSWER:
            self._reply(run, run.answer)
        elif kind is Kind.ARRIVE and not self.fleet.fails(run.task.id):
            self._arrive(run)
        else:  # dead or offline, or bound to die but quicker than its nominal duration
            self._lose(run)

    def _tick(self) -> None:
        self._retry = False
        self._start()
        if self.server.schedule.timed:
            self.clock.schedule(self.clock.now + self.period, Kind.TICK)

    def _start(self) -> None:
        """Start devices where the schedule has room. When nobody is there to start, try again a period later."""
        now = self.clock.now
        for task in self.server.tick(lambda device: self.fleet.availability.until(device, now) is not None):
            self._begin_task(task)
        if not self.server.schedule.timed and not self.runs and not self._retry:
            self._retry = True
            self.clock.schedule(now + self.period, Kind.TICK)

    def _begin_task(self, task: Task) -> None:
        now, device = self.clock.now, task.device
        self.record.event(now, "start", {"task": task.id, "device": device, "version": task.model.version})
        size = round(task.share * self.model_bytes)
        self.meter.tally.bytes_down += size
        run = self.runs[task.id] = self._open(task)
        profile, work = self.fleet.profiles[device], run.work
        arrival = profile.download(size)
        nominal = arrival + self._seconds(run, work.samples(range(work.steps))) + profile.upload(size)
        if (death := self.fleet.death(task.id, device, now, nominal)) < math.inf:
            self.clock.schedule(death, Kind.LOST, task.id)
        self._advance(run, None, delay=arrival)

    def _open(self, task: Task) -> Run:
        """A session at its start. It works on a copy of the device's memory, kept when the task is delivered."""
        memory, work = self.memories.get(task.device), self.workload(task.device)
        return Run(task, work, self.learner.train(task, work, memory), memory, self.fleet.slowdown(task.id))

    def _reply(self, run: Run, reply: Any) -> None:
        run.replies += 1
        self._advance(run, reply)

    def _advance(self, run: Run, reply: Any, delay: float = 0.0) -> None:
        """Hand the session its reply, and see to what it wants next."""
        now, device = self.clock.now + delay, run.task.device
        profile = self.fleet.profiles[device]
        try:
            command = run.session.send(reply)
            while isinstance(command, Poll):
                run.polls.append(self.server.wanted(run.task.id))
                command = run.session.send(run.polls[-1])
        except StopIteration as stop:
            run.report = stop.value
            size = round(run.task.share * self.model_bytes) + stop.value.extra_bytes
            self.meter.tally.bytes_up += size
            self.clock.schedule(now + profile.upload(size), Kind.ARRIVE, run.task.id)
            return
        except Exception as error:
            who = f"device {device} (task {run.task.id}, seed {run.task.seed})"
            raise DeviceError(None, f"the method failed on {who}\n\n{traceback.format_exc().rstrip()}") from error
        if isinstance(command, Fetch):
            self.clock.schedule(now + profile.latency, Kind.ASK, run.task.id)
            return
        done = now + self._seconds(run, _samples(command, run.work))
        self._submit(run, command, done)
        self.clock.schedule(done, Kind.DONE, run.task.id)

    def _submit(self, run: Run, command: Train | Probe, needed: float) -> None:
        task = run.task
        run.ticket = self.pool.submit(Job(command, task.device, task.id, task.seed), needed)

    def _seconds(self, run: Run, samples: float) -> float:
        return samples * self.fleet.profiles[run.task.device].seconds_per_sample * run.slowdown

    def _ask(self, run: Run) -> None:
        fresh = run.answer = self.server.fetch(run.task.id)
        version = None if fresh is None else fresh.version
        self.record.event(self.clock.now, "fetch", {"task": run.task.id, "device": run.task.device, "fresh": version})
        size = 0 if fresh is None else self.model_bytes
        self.meter.tally.bytes_down += size
        self.clock.schedule(
            self.clock.now + self.fleet.profiles[run.task.device].download(size), Kind.ANSWER, run.task.id
        )

    def _arrive(self, run: Run) -> None:
        task, report = run.task, run.report
        assert report is not None
        del self.runs[task.id]
        decision = self.server.receive(task.id, report)
        if decision.verdict is not Verdict.REFUSED:  # what made a broken model is not worth remembering
            self.memories.put(task.device, run.memory)
        self.meter.upload(report, decision.staleness)
        note = {key: value for key, value in report.note.items() if isinstance(value, int | float | str | None)}
        fields = {
            "task": task.id,
            "device": task.device,
            "base": task.model.version,
            "staleness": decision.staleness,
            "verdict": decision.verdict,
            "loss": report.loss,
        }
        self.record.event(self.clock.now, "upload", fields, note)
        self._aggregated(decision.aggregation)
        if self.server.counters.received % self.evaluate_every == 0:
            self._evaluate()
        self.observe(self)

    def _lose(self, run: Run) -> None:
        task = run.task
        self._abandon(run)
        del self.runs[task.id]
        decision = self.server.lose(task.id)
        self.record.event(self.clock.now, "lost", {"task": task.id, "device": task.device})
        self._aggregated(decision.aggregation)

    def _abandon(self, run: Run) -> None:
        if run.ticket is not None:
            self.pool.cancel(run.ticket)
        run.session.close()

    def _aggregated(self, aggregation: Aggregation | None) -> None:
        if aggregation is not None:
            tasks = [upload.task for upload in aggregation.uploads]
            fields = {"version": aggregation.version, "tasks": tasks, "weights": list(aggregation.weights)}
            self.record.event(self.clock.now, "version", fields, aggregation.details)

    def _evaluate(self) -> None:
        self.meter.evaluate(self.server.model, self.server.counters, self.clock.now)

    def state(self) -> dict[str, Any]:
        """A checkpoint. Sessions cannot be saved, but they can be played again: what they were answered is kept."""
        return {
            "server": self.server.state(),
            "clock": self.clock.state(),
            "meter": self.meter.state(),
            "memories": self.memories.state(),
            "retry": self._retry,
            "runs": [{"task": run.task.id, "replies": run.replies, "polls": run.polls} for run in self.runs.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.server.restore(state["server"])
        self.clock.restore(state["clock"])
        self.meter.restore(state["meter"])
        self.memories.restore(state["memories"])
        self._retry = state["retry"]
        needed = {event[3]: event[0] for event in state["clock"]["events"] if event[2] != Kind.LOST}
        for line in state["runs"]:
            self._replay(line["task"], line["replies"], line["polls"], needed[line["task"]])

    def _replay(self, task: int, replies: int, polls: list[bool], needed: float) -> None:
        """Run a task in flight again from its start to where the checkpoint found it, to the same bits."""
        entry = self.server.ledger[task]
        run = self.runs[task] = self._open(entry.task)
        reply: Any = None
        answers = iter([entry.fresh])  # the server answers a task's first request only
        try:
            while True:
                command = run.session.send(reply)
                if isinstance(command, Poll):
                    reply = polls[len(run.polls)]
                    run.polls.append(reply)
                    continue
                if isinstance(command, Fetch):
                    reply = run.answer = next(answers, None)
                else:
                    self._submit(run, command, needed)
                if run.replies == replies:
                    return
                if run.ticket is not None:
                    reply, run.ticket = self.pool.result(run.ticket), None
                run.replies += 1
        except StopIteration as stop:
            run.report = stop.value


def _samples(command: Train | Probe, work: Workload) -> float:
    """What a computation costs, in examples trained on."""
    if isinstance(command, Train):
        return command.work * work.samples(command.steps)
    passes = 0.0 if command.free else 1.0 if command.gradient else FORWARD
    return passes * work.samples(range(command.step, command.step + 1))
