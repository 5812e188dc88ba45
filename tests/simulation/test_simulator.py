"""What must hold in every run, on random fleets and schedules; and what the simulator does with each command."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedasmu import Experiment, Result
from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import Average, LocalSGD
from fedasmu.encoding import codec
from fedasmu.errors import DeviceError
from fedasmu.events import Delivered, Event, Fetched, Lost, Measured, Renewed, Started, Verdict
from fedasmu.pools import Inline, timing_only
from fedasmu.protocol import Fetch, Memory, Model, Poll, Probe, Report, Session, Task, Train, Workload
from fedasmu.run.profiles import Profile
from fedasmu.schedule import Periodic, Rounds, Schedule
from fedasmu.seeding import uniform
from fedasmu.server.core import Server
from fedasmu.server.desk import Desk
from fedasmu.settings.config import Config
from fedasmu.settings.recipe import parse
from fedasmu.simulation.clock import Clock, Kind
from fedasmu.simulation.fleet import Fleet
from fedasmu.simulation.memories import Memories
from fedasmu.simulation.simulator import Simulator
from fedasmu.storage.record import Record
from fedasmu.storage.shelf import Shelf
from helpers.blobs import Run, blobs, softmax
from helpers.blobs import settings as blob_settings


class Asking(Learner):
    """Trains, probes, asks for a fresh model in the middle, and trains on."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        half = work.steps // 2
        memory["tasks"] = memory.get("tasks", 0) + 1
        trained = yield Train(task.model.vector, range(half), task.lr)
        fresh = yield Fetch()
        assert fresh is None or fresh.version > task.model.version
        yield Probe(trained.vector, half, gradient=True, free=True)
        rest = yield Train(trained.vector, range(half, work.steps), task.lr)
        return Report(rest.vector, work.examples, rest.loss, {"fresh": fresh and fresh.version, "n": memory["tasks"]})


class Study(Algorithm):
    """Any schedule with any learner, for the tests."""

    kind = "buffered"
    name: str = "study"
    cohort: int = 0  # 0: periodic
    buffer: int = 1
    asks: bool = False

    def schedule(self, pace: Pace) -> Schedule:
        return Rounds(min(self.cohort, pace.limit)) if self.cohort else Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Average(federation.examples)

    def learner(self) -> Learner:
        return Asking() if self.asks else LocalSGD()


def simulate(directory: Path, algorithm: Study, check: Any = None, **changes: Any) -> Result:
    table = blob_settings(**changes)
    config = parse({**table, "timing_only": True, "data": {"per_device": 23}, "algorithm": {"name": "fedavg"}})
    config = config.model_copy(update={"algorithm": algorithm})
    assert isinstance(config, Config)
    return Experiment(config, model=softmax).run(directory, observe=check)


schedules = st.builds(
    Study,
    cohort=st.integers(0, 6),
    buffer=st.integers(1, 4),
    asks=st.booleans(),
    max_staleness=st.none() | st.integers(1, 5),
)
fleets = st.fixed_dictionaries(
    {
        "devices": st.integers(1, 15),
        "slowest_over_fastest": st.floats(1, 50),
        "seconds_per_sample": st.sampled_from([0.001, 0.01, 0.1]),
        "latency": st.sampled_from([0.0, 0.05, 2.0]),
        "jitter": st.sampled_from([0.0, 0.3]),
        "dropout": st.sampled_from([0.0, 0.0, 0.3]),
        "availability": st.sampled_from([1.0, 1.0, 0.6]),
        "cycle": st.just(50.0),
    }
)
pacings = st.fixed_dictionaries(
    {
        "period": st.sampled_from([0.5, 1.0, 7.0]),
        "count": st.integers(1, 5),
        "max_in_flight": st.integers(1, 15) | st.floats(0.05, 1),
    }
)


class Ledger:
    """Reads a run's events one by one, as an auditor would."""

    def __init__(self, result: Result) -> None:
        self.config = result.config
        self.busy: dict[int, int] = {}  # device -> task
        self.starts: dict[int, Started] = {}
        self.ends: dict[int, Delivered | Lost] = {}
        self.fetches: dict[int, list[Fetched]] = defaultdict(list)
        self.version, self.most_busy, self.now = 0, 0, 0.0
        self.aggregated: list[int] = []
        for event in result.typed_events:
            assert event.time >= self.now, "the clock never goes back"
            self.now = event.time
            getattr(self, f"read_{event.kind}")(event)

    @property
    def uploads(self) -> list[Delivered]:
        return [event for event in self.ends.values() if isinstance(event, Delivered)]

    def read_start(self, event: Started) -> None:
        assert event.task == len(self.starts), "tasks are numbered in the order of their start"
        assert event.device not in self.busy, "a device has one task at a time"
        assert event.version == self.version, "a task starts from the newest version"
        self.starts[event.task] = event
        self.busy[event.device] = event.task
        self.most_busy = max(self.most_busy, len(self.busy))

    def read_fetch(self, event: Fetched) -> None:
        assert self.busy[event.device] == event.task
        newest = self.version if self.version > self.starts[event.task].version else None
        assert event.fresh == newest
        self.fetches[event.task].append(event)

    def end(self, event: Delivered | Lost) -> None:
        assert self.busy.pop(event.device) == event.task
        assert event.task not in self.ends
        self.ends[event.task] = event

    def read_upload(self, event: Delivered) -> None:
        self.end(event)
        start, bound = self.starts[event.task], self.config["algorithm"].get("max_staleness", math.inf)
        assert event.base == start.version
        assert event.staleness == self.version - start.version + 1 >= 1
        assert event.verdict is (Verdict.STALE if event.staleness > bound else Verdict.ACCEPTED)

    def read_lost(self, event: Lost) -> None:
        self.end(event)

    def read_version(self, event: Renewed) -> None:
        assert event.version == self.version + 1, "versions are counted without a gap"
        self.version += 1
        self.aggregated += event.tasks


def profiles(result: Result) -> list[Profile]:
    with (result.directory / "fleet.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("seconds_per_sample", "down_mbps", "up_mbps", "latency")
    return [Profile(*(float(row[name]) for name in names)) for row in rows]


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules, fleets, pacings, st.integers(0, 1000))
def test_invariants_of_every_run(
    tmp_path_factory: pytest.TempPathFactory, algorithm: Study, fleet: Any, pacing: Any, seed: int
) -> None:
    under_way: set[int] = set()

    def check(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Started):
            under_way.add(line.task)
        elif isinstance(line, Delivered | Lost):
            under_way.remove(line.task)
            assert under_way == set(desk.server.ledger), "the server holds a task exactly while it is under way"
            assert len(desk.meter.pool._jobs) <= len(under_way) + 1  # type: ignore[union-attr]

    directory = tmp_path_factory.mktemp("runs") / "run"
    stop = {"uploads": 40, "time": 2000.0}
    result = simulate(directory, algorithm, check, fleet=fleet, pacing=pacing, seed=seed, stop=stop)
    ledger, devices = Ledger(result), profiles(result)

    limit = parse(result.config | {"algorithm": {"name": "fedavg"}}).pacing.pace(len(devices)).limit
    assert ledger.most_busy <= (min(limit, algorithm.cohort) if algorithm.cohort else limit)

    # A task ends in an upload or a loss, or is under way when the run ends; what was accepted was aggregated.
    uploads = ledger.uploads
    accepted = [event.task for event in uploads if event.verdict is Verdict.ACCEPTED]
    assert sorted(accepted) == sorted(ledger.aggregated)
    assert set(ledger.starts) == set(ledger.ends) | set(ledger.busy.values())
    assert len(uploads) == result.summary["uploads"] <= 40
    assert len(ledger.ends) - len(uploads) == result.summary["lost"]
    assert ledger.now <= 2000

    # Completion = dispatch + download + training + upload.
    size, samples = 4 * 42, 23 * 2
    for event in uploads:
        device, fetches = devices[event.device], ledger.fetches[event.task]
        slowdown = 1 + fleet["jitter"] * (2 * uniform(seed, "jitter", event.task) - 1)
        cost = device.download(size) + samples * device.seconds_per_sample * slowdown + device.upload(size)
        if fetches:
            (fetch,) = fetches
            cost += device.latency + device.download(size if fetch.fresh else 0)
        took = event.time - ledger.starts[event.task].time
        assert took == pytest.approx(cost, abs=1e-6)

    # Every byte that was sent is counted: models to devices, fresh models, and models to the server.
    fresh = sum(fetch.fresh is not None for fetches in ledger.fetches.values() for fetch in fetches)
    assert result.summary["bytes_down"] == size * (len(ledger.starts) + fresh)
    assert result.summary["bytes_up"] % size == 0
    assert len(uploads) <= result.summary["bytes_up"] // size <= len(ledger.starts)
    if not fleet["dropout"] and fleet["availability"] == 1:
        assert result.summary["lost"] == 0

    # The metrics agree with the events.
    assert result.curve["version"][-1] == ledger.version
    assert result.curve["uploads"][-1] <= len(uploads)
    assert (result.curve["time"][1:] >= result.curve["time"][:-1]).all()
    if uploads:
        assert result.summary["mean_staleness"] == pytest.approx(
            sum(event.staleness for event in uploads) / len(uploads)
        )


def test_fresh_models_are_sent_and_counted(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study(asks=True), fleet={"slowest_over_fastest": 20.0})
    ledger = Ledger(result)
    fresh = [fetch for fetches in ledger.fetches.values() for fetch in fetches if fetch.fresh is not None]
    assert len(fresh) > 10
    assert result.summary["bytes_down"] == 168 * (len(ledger.starts) + len(fresh))
    noted = {event.task: event.notes["fresh"] for event in ledger.uploads}
    assert all(noted[fetch.task] == fetch.fresh for fetch in fresh if fetch.task in noted)


def test_completion_is_exactly_dispatch_plus_cost(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study())
    ledger, devices = Ledger(result), profiles(result)
    assert len(ledger.ends) == 60
    for task, event in ledger.ends.items():
        device, start = devices[event.device], ledger.starts[task].time
        trained = start + device.download(168) + 46 * device.seconds_per_sample
        assert event.time == trained + device.upload(168)


def test_a_trigger_every_period_starts_up_to_count_devices(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study(), pacing={"period": 2.0, "count": 3, "max_in_flight": 10})
    times = [event["time"] for event in result.events if event["event"] == "start"]
    assert times[:6] == [0, 0, 0, 2, 2, 2]
    assert {time % 2 for time in times} == {0}


def test_a_round_waits_for_the_slowest_and_the_next_starts_at_once(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study(cohort=4))
    events = list(result.events)
    for place, event in enumerate(events[:-1]):
        if event["event"] == "version":
            assert len(event["tasks"]) == 4
            assert events[place - 1]["event"] == "upload"
            assert [other["event"] for other in events[place + 1 : place + 5]] == ["start"] * 4
            assert {other["time"] for other in events[place + 1 : place + 5]} == {event["time"]}


def test_the_run_ends_when_its_virtual_time_is_up(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study(), stop={"uploads": 10**6, "time": 30.0})
    assert 20 < result.summary["virtual_seconds"] <= 30
    assert all(event["time"] <= 30 for event in result.events)


def test_a_buffer_is_flushed_at_the_end(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", Study(buffer=7), stop={"uploads": 10})
    sizes = [len(event["tasks"]) for event in result.events if event["event"] == "version"]
    assert sizes == [7, 3]
    assert result.curve["version"][-1] == 2


def test_evaluation_does_not_influence_the_order_of_events(run: Run) -> None:
    often, seldom = run(evaluate={"every": 1}), run(evaluate={"every": 50})
    assert len(often.curve["time"]) > len(seldom.curve["time"])
    for name in ("events.jsonl", "model.safetensors"):
        assert (often.directory / name).read_bytes() == (seldom.directory / name).read_bytes()


def test_timing_only_has_the_events_of_the_real_run(run: Run) -> None:
    """What a command costs is known before its result: the order of events does not depend on the training."""
    data = blobs()
    even = data.shards[0][:20]
    real = run(data=type(data)(data.name, data.train, data.test, [even] * 10, 2))
    table = blob_settings(timing_only=True)
    stub = Experiment(table | {"data": {"per_device": 20}}, model=softmax).run(real.directory.parent / "stub")

    def timing(result: Result) -> list[dict[str, Any]]:
        return [{key: value for key, value in event.items() if key != "loss"} for event in result.events]

    assert timing(real) == timing(stub)


def test_equal_times_go_to_what_was_scheduled_first() -> None:
    clock = Clock()
    for task, time in enumerate([5.0, 3.0, 5.0, 3.0]):
        clock.schedule(time, Kind.DONE, task)
    assert [clock.advance()[3] for _ in range(4)] == [1, 3, 0, 2]
    assert clock.now == 5.0
    with pytest.raises(ValueError, match="it is 5"):
        clock.schedule(4.9, Kind.TICK)


def test_a_restored_clock_goes_on_where_it_was() -> None:
    clock, again = Clock(), Clock()
    for task in range(20):
        clock.schedule(float(task * 7 % 5), Kind.DONE, task)
    for _ in range(6):
        clock.advance()
    again.restore(json.loads(json.dumps(clock.state())))
    clock.schedule(3.0, Kind.LOST, 99)
    again.schedule(3.0, Kind.LOST, 99)
    assert [clock.advance() for _ in range(15)] == [again.advance() for _ in range(15)]


class Scripted(Learner):
    """Plays a list of commands, and keeps what it was answered."""

    def __init__(self, commands: Any) -> None:
        self.commands = commands
        self.replies: list[Any] = []

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        for command in self.commands(task, work):
            self.replies.append((yield command))
        return Report(task.model.vector, work.examples, 0.0, {"big": torch.zeros(25)})


def by_hand(learner: Learner, tmp_path: Path, **changes: Any) -> Simulator:
    """One device: 1 s a sample, 1 byte a second both ways, latency 0.25 s, a model of 8 bytes."""
    fleet = Fleet([Profile(1.0, 8e-6, 8e-6, 0.25)], 0)
    server = Server(Model(0, torch.zeros(2)), Periodic(1, 1), Average([10]), 1, 0, lambda uploads: 0.1, **changes)
    (tmp_path / "run").mkdir()
    record, pool = Record(tmp_path / "run"), Inline(timing_only)
    return Simulator(
        desk=Desk(server, record, pool, model_bytes=8),
        learner=learner,
        fleet=fleet,
        pool=pool,
        memories=Memories(Shelf(tmp_path / "shelf")),
        workload=lambda device: Workload(10, 4, 1),
        period=1000.0,
        max_uploads=1,
    )


def test_what_each_command_costs(tmp_path: Path) -> None:
    def script(task: Task, work: Workload) -> list[Any]:
        vector = task.model.vector
        return [
            Train(vector, range(2), 0.1),  # 8 samples: 8 s
            Train(vector, range(2, 3), 0.1, work=0.5),  # the partial batch of 2, at half the work: 1 s
            Probe(vector, 0),  # a third of 4 samples
            Probe(vector, 0, gradient=True),  # 4 samples: 4 s
            Probe(vector, 2, gradient=True, free=True),
            Fetch(),  # asked and answered, nothing newer: 0.5 s
            Poll(),  # free
        ]

    learner = Scripted(script)
    simulator = by_hand(learner, tmp_path)
    simulator.begin()
    while simulator.ended is None:
        simulator.step()
    # 8.25 s down; 8 + 1 + 4/3 + 4 + 0.5 s of work; the model and 100 bytes up in 108.25 s
    assert simulator.clock.now == pytest.approx(8.25 + 8 + 1 + 4 / 3 + 4 + 0.5 + 108.25)
    assert simulator.desk.meter.tally.bytes_down == 8
    assert simulator.desk.meter.tally.bytes_up == 108
    assert learner.replies[-2:] == [None, False]


def test_a_failing_method_shows_its_device_and_seed(tmp_path: Path) -> None:
    def script(task: Task, work: Workload) -> list[Any]:
        raise ZeroDivisionError("a bug in a method")

    simulator = by_hand(Scripted(script), tmp_path)
    simulator.begin()
    with pytest.raises(
        DeviceError, match=r"the method failed on device 0 \(task 0, seed \d+\)(.|\n)*a bug in a method"
    ):
        simulator.step()


def test_a_second_request_is_answered_the_same_after_a_resume(tmp_path: Path) -> None:
    """The server answers a task's first request only; so must the replay of a session."""

    def script(task: Task, work: Workload) -> list[Any]:
        return [Fetch(), Fetch(), Train(task.model.vector, range(3), 0.1)]

    learner = Scripted(script)
    simulator = by_hand(learner, tmp_path)
    simulator.begin()
    simulator.step()  # the tick that starts the task
    simulator.desk.server.model = Model(1, torch.ones(2))  # somebody else's upload makes a version meanwhile
    while len(learner.replies) < 2:
        simulator.step()
    assert [reply and reply.version for reply in learner.replies] == [1, None]
    again = Scripted(script)
    (tmp_path / "other").mkdir()
    resumed = by_hand(again, tmp_path / "other")
    state = simulator.state()
    state["desk"]["record"] = resumed.desk.record.state()
    resumed.restore(state)
    assert [reply and reply.version for reply in again.replies] == [1, None]


def test_old_models_are_released_as_tasks_end(run: Run) -> None:
    """The server holds one vector for each distinct version in flight, and the newest."""
    most: list[int] = []

    def count(desk: Desk, line: Event | Measured) -> None:
        tensors: dict[str, torch.Tensor] = {}
        codec.encode(desk.server.state(), tensors)
        in_flight = {entry.task.model.version for entry in desk.server.ledger.values()}
        assert len(tensors) == len(in_flight | {desk.server.model.version}) + 1  # and the list of idle devices
        most.append(len(tensors) - 1)

    experiment = Experiment(blob_settings(), model=softmax, data=blobs())
    experiment.run(run(stop={"uploads": 1}).directory.parent / "counted", observe=count)
    assert 1 <= max(most) <= 6  # five in flight, and the newest
