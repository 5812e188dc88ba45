"""The server as plain calls: what it decides, it decides from its ledger alone."""

from __future__ import annotations

import gc
import re
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedasmu.algorithms.base import Aggregate, Aggregator
from fedasmu.encoding import codec
from fedasmu.errors import DeviceError
from fedasmu.events import Verdict
from fedasmu.protocol import Model, Report, Upload
from fedasmu.schedule import Periodic, Rounds, Schedule
from fedasmu.server.core import Server
from fedasmu.server.inspection import LARGEST
from fedasmu.storage import checkpoint


class Plus(Aggregator):
    """Adds the uploads up, and counts them and the discarded ones."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.too_stale: list[int] = []

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        self.seen += [upload.task for upload in uploads]
        vector = current.vector + sum(upload.report.vector for upload in uploads)
        return Aggregate(vector, [1.0] * len(uploads), {"sum": float(vector.sum())})

    def discarded(self, upload: Upload) -> None:
        self.too_stale.append(upload.task)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen, "too_stale": self.too_stale}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen, self.too_stale = state["seen"], state["too_stale"]


def a_server(schedule: Schedule | None = None, devices: int = 20, **changes: Any) -> Server:
    schedule = schedule or Periodic(count=4, limit=12)
    return Server(Model(0, torch.zeros(3)), schedule, Plus(), devices, 0, lambda uploads: 0.5**uploads, **changes)


def report(value: float = 1.0) -> Report:
    return Report(torch.full((3,), value), examples=5)


def test_a_fresh_upload_has_staleness_one_and_makes_a_version() -> None:
    server = a_server()
    task = server.tick()[0]
    decision = server.receive(task.id, task.device, report())
    assert (decision.verdict, decision.staleness) == (Verdict.ACCEPTED, 1)
    assert decision.aggregation is not None
    assert decision.aggregation.version == server.model.version == 1
    assert decision.aggregation.details == {"sum": 3.0}
    assert server.model.vector.tolist() == [1, 1, 1]


def test_staleness_counts_the_versions_since_the_task_was_issued() -> None:
    server = a_server()
    first, second, third, fourth = server.tick()
    assert [server.receive(task.id, task.device, report()).staleness for task in (second, first, fourth, third)] == [
        1,
        2,
        3,
        4,
    ]


def test_a_fetch_does_not_make_an_upload_less_stale() -> None:
    server = a_server()
    slow, quick, *_ = server.tick()
    server.receive(quick.id, quick.device, report())
    assert server.fetch(slow.id, slow.device) is server.model
    decision = server.receive(slow.id, slow.device, report())
    assert decision.staleness == 2
    assert decision.aggregation is not None
    (upload,) = decision.aggregation.uploads
    assert upload.base.version == 0
    assert upload.fresh is not None
    assert upload.fresh.version == 1


def test_duplicates_replays_and_inventions_are_unknown_and_change_nothing() -> None:
    server = a_server()
    task = server.tick()[0]
    server.receive(task.id, task.device, report())
    other = server.tick()[0]
    model, counters = server.model, repr(server.counters)
    for number, device in ((task.id, task.device), (99, task.device), (-1, -1), (other.id, task.device)):
        decision = server.receive(number, device, report(100.0))
        assert (decision.verdict, decision.aggregation) == (Verdict.UNKNOWN, None)
        assert server.lose(number, device).verdict == Verdict.UNKNOWN
        assert server.fetch(number, device) is None
        assert not server.wanted(number, device)
    assert server.model is model
    assert repr(server.counters) == counters


def test_an_upload_after_its_task_was_lost_is_unknown() -> None:
    server = a_server()
    task = server.tick()[0]
    assert server.lose(task.id).verdict == Verdict.LOST
    assert server.receive(task.id, task.device, report()).verdict == Verdict.UNKNOWN
    assert (server.counters.lost, server.counters.received) == (1, 0)


def test_uploads_beyond_the_bound_are_discarded_and_counted() -> None:
    server = a_server(max_staleness=2)
    first, second, third, _ = server.tick()
    server.receive(first.id, first.device, report())
    assert server.receive(second.id, second.device, report()).verdict == Verdict.ACCEPTED  # staleness 2: just within
    vector = server.model.vector
    decision = server.receive(third.id, third.device, report())
    assert (decision.verdict, decision.staleness, decision.aggregation) == (Verdict.STALE, 3, None)
    assert server.model.version == 2
    assert server.model.vector is vector
    assert (server.counters.stale, server.counters.received, server.counters.accepted) == (1, 3, 2)
    assert server.aggregator.too_stale == [third.id]  # type: ignore[attr-defined]


NOT_MODELS = {
    "too short": torch.ones(2),
    "too long": torch.ones(4),
    "wrong shape": torch.ones(3, 1),
    "float64": torch.ones(3, dtype=torch.float64),
    "integers": torch.ones(3, dtype=torch.int32),
    "NaN": torch.tensor([1.0, float("nan"), 1.0]),
    "infinity": torch.tensor([1.0, float("inf"), 1.0]),
    "opposite infinities": torch.tensor([float("inf"), 0.0, float("-inf")]),
    "sparse": torch.ones(3).to_sparse(),
    "nowhere": torch.ones(3, device="meta"),
    "no tensor": [1.0, 1.0, 1.0],
    "nothing": None,
}
NOT_LOSSES = {"NaN": float("nan"), "infinity": float("inf"), "too large": 10**400, "text": "0.1", "nothing": None}
RUBBISH: dict[str, tuple[object, object]] = {f"a vector: {name}": (vector, 0.0) for name, vector in NOT_MODELS.items()}
RUBBISH |= {f"a loss: {name}": (torch.ones(3), loss) for name, loss in NOT_LOSSES.items()}


@pytest.mark.parametrize(("vector", "loss"), RUBBISH.values(), ids=RUBBISH.keys())
def test_what_is_not_a_model_is_refused_and_the_run_goes_on(vector: Any, loss: Any) -> None:
    server = a_server()
    bad, good, *_ = server.tick()
    decision = server.receive(bad.id, bad.device, Report(vector, 1, loss))
    assert (decision.verdict, decision.aggregation) == (Verdict.REFUSED, None)
    assert (server.counters.refused, server.counters.received, server.model.version) == (1, 1, 0)
    assert server.receive(good.id, good.device, report()).verdict == Verdict.ACCEPTED
    assert server.model.vector.tolist() == [1, 1, 1]
    assert bad.device not in {entry.task.device for entry in server.ledger.values()}


@pytest.mark.parametrize(("number", "verdict"), [(LARGEST, Verdict.ACCEPTED), (3e38, Verdict.REFUSED)])
def test_large_models_are_accepted_while_nothing_overflows(number: float, verdict: Verdict) -> None:
    server = a_server()
    task = server.tick()[0]
    assert server.receive(task.id, task.device, Report(torch.full((3,), number), 1)).verdict == verdict


def test_a_fresh_model_is_given_only_if_it_is_newer() -> None:
    server = a_server()
    task, other, *_ = server.tick()
    assert server.fetch(task.id, task.device) is None
    server.receive(other.id, other.device, report())
    assert server.fetch(task.id, task.device) is None  # it has asked already, at its own time


def test_a_fresh_model_is_given_at_most_once() -> None:
    server = a_server()
    task, other, *_ = server.tick()
    server.receive(other.id, other.device, report())
    fresh = server.fetch(task.id, task.device)
    assert fresh is not None
    assert fresh.version == 1
    assert server.fetch(task.id, task.device) is None


def test_named_devices_are_started_and_a_busy_or_invented_one_is_named() -> None:
    server = a_server(devices=5)
    assert [(task.id, task.device) for task in server.start([3, 0])] == [(0, 3), (1, 0)]
    for device in (3, 5, -1):
        with pytest.raises(ValueError, match=f"device {device} cannot be started"):
            server.start([device])
    assert {task.device for task in server.tick()} == {1, 2, 4}


class Spoiling(Plus):
    """Writes into what it was given."""

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        current.vector.add_(uploads[0].report.vector)
        return Aggregate(current.vector.clone(), [1.0])


def test_a_method_that_writes_into_the_global_model_is_caught() -> None:
    server = a_server()
    server.aggregator = Spoiling()
    task = server.tick()[0]
    with pytest.raises(DeviceError, match=r"version 0 of the global model was written into.*Spoiling"):
        server.receive(task.id, task.device, report())


class Giving(Plus):
    """Gives what it was made with."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        return self.result  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "gave a NoneType, not an Aggregate"),
        (torch.zeros(3), "gave a Tensor, not an Aggregate"),
        (Aggregate([0.0] * 3, [1.0]), "gave a vector that is a list, not a tensor"),  # type: ignore[arg-type]
        (Aggregate(torch.zeros(2), [1.0]), "gave a vector of torch.float32 (2,); the model's is of torch.float32 (3,)"),
        (Aggregate(torch.zeros(3, dtype=torch.float64), [1.0]), "gave a vector of torch.float64 (3,)"),
    ],
)
def test_a_method_whose_next_model_is_none_is_named(result: Any, words: str) -> None:
    server = a_server()
    server.aggregator = Giving(result)
    task = server.tick()[0]
    with pytest.raises(DeviceError, match=re.escape(f"Giving.aggregate {words}")):
        server.receive(task.id, task.device, report())


def test_a_session_that_writes_into_an_old_global_model_is_caught() -> None:
    server = a_server()
    slow, quick, *_ = server.tick()
    server.receive(quick.id, quick.device, report())
    slow.model.vector[0] = 5.0
    with pytest.raises(DeviceError, match="version 0 of the global model"):
        server.receive(slow.id, slow.device, report())


def test_losing_a_device_frees_its_place() -> None:
    server = a_server(Periodic(count=4, limit=4), devices=4)
    tasks = server.tick()
    assert server.tick() == []
    server.lose(tasks[0].id)
    (again,) = server.tick()
    assert again.device == tasks[0].device
    assert again.id == 4


def test_a_round_is_complete_when_its_last_member_dies() -> None:
    server = a_server(Rounds(3))
    first, second, third = server.tick()
    assert server.receive(first.id, first.device, report()).aggregation is None
    assert server.receive(second.id, second.device, report()).aggregation is None
    aggregation = server.lose(third.id).aggregation
    assert aggregation is not None
    assert [upload.task for upload in aggregation.uploads] == [first.id, second.id]
    assert len(server.tick()) == 3


def test_a_round_is_complete_when_its_last_member_delivers_rubbish() -> None:
    server = a_server(Rounds(2))
    first, second = server.tick()
    server.receive(first.id, first.device, report())
    decision = server.receive(second.id, second.device, report(float("nan")))
    assert decision.verdict == Verdict.REFUSED
    assert decision.aggregation is not None
    assert decision.aggregation.version == 1


def test_a_whole_cohort_dying_starts_a_new_round() -> None:
    server = a_server(Rounds(3))
    for task in server.tick():
        assert server.lose(task.id).aggregation is None
    assert server.model.version == 0
    assert [task.id for task in server.tick()] == [3, 4, 5]


def test_a_buffer_waits_until_it_is_full_and_flush_empties_it() -> None:
    server = a_server(Periodic(count=4, limit=12, buffer=3))
    first, second, third, fourth = server.tick()
    assert server.receive(first.id, first.device, report()).aggregation is None
    assert server.receive(second.id, second.device, report()).aggregation is None
    assert server.receive(third.id, third.device, report()).aggregation is not None
    assert server.receive(fourth.id, fourth.device, report()).staleness == 2
    last = server.flush()
    assert last is not None
    assert [upload.task for upload in last.uploads] == [fourth.id]
    assert server.flush() is None


def test_tasks_that_fell_too_far_behind_are_called_in_before_the_next_version() -> None:
    server = a_server(Periodic(count=4, limit=12), pull_beyond=1)
    slow, quick, *others = server.tick()
    for task in others:
        server.lose(task.id)
    assert server.receive(quick.id, quick.device, report()).aggregation is not None  # version 1: now `slow` is 2 stale
    assert not server.wanted(slow.id, slow.device)  # it is noticed at an aggregation
    late = server.tick()[0]
    assert server.receive(late.id, late.device, report()).aggregation is None
    assert server.wanted(slow.id, slow.device)
    assert not server.wanted(late.id, late.device)
    aggregation = server.receive(slow.id, slow.device, report()).aggregation
    assert aggregation is not None
    assert {upload.task for upload in aggregation.uploads} == {late.id, slow.id}


def test_a_called_in_device_that_dies_does_not_stop_the_server() -> None:
    server = a_server(Periodic(count=2, limit=12), pull_beyond=1)
    slow, quick = server.tick()
    server.receive(quick.id, quick.device, report())
    third = server.tick()[0]
    assert server.receive(third.id, third.device, report()).aggregation is None
    assert server.lose(slow.id).aggregation is not None


def test_the_learning_rate_follows_the_uploads_received() -> None:
    server = a_server()
    tasks = server.tick()
    assert {task.lr for task in tasks} == {1.0}
    server.receive(tasks[0].id, tasks[0].device, report())
    server.receive(tasks[1].id, tasks[1].device, report(float("nan")))  # counts too: it was received
    assert server.tick()[0].lr == 0.25


def test_tasks_have_seeds_of_their_own() -> None:
    server = a_server(Periodic(12, 12))
    assert len({task.seed for task in server.tick()}) == 12


def test_every_device_is_picked_equally_often() -> None:
    counts: Counter[int] = Counter()
    server = a_server(Periodic(count=4, limit=4), devices=10)
    for _ in range(2500):
        for task in server.tick():
            counts[task.device] += 1
            server.lose(task.id)
    assert sum(counts.values()) == 10_000
    # One standard deviation is about 25: a device beyond 4 of them means that the draw is skewed.
    assert all(900 < counts[device] < 1100 for device in range(10))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.sets(st.integers(0, 29)),
    st.integers(1, 10),
    st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=40),
)
def test_picks_are_idle_eligible_and_without_replacement(
    devices: int, offline: set[int], count: int, moves: list[tuple[bool, int]]
) -> None:
    server = a_server(Periodic(count=count, limit=devices), devices=devices)
    for start, which in moves:
        busy = {entry.task.device for entry in server.ledger.values()}
        free = set(range(devices)) - busy - offline
        if start:
            picked = [task.device for task in server.tick(lambda device: device not in offline)]
            assert len(picked) == len(set(picked)) == min(count, devices - len(busy), len(free))
            assert set(picked) <= free
        elif server.ledger:
            server.lose(sorted(server.ledger)[which % len(server.ledger)])
    for task in list(server.ledger):
        server.lose(task)
    server.schedule = Periodic(devices, devices)
    assert sorted(task.device for task in server.tick()) == list(range(devices)), "nobody got lost or doubled"


def test_old_versions_are_held_only_while_a_task_holds_them() -> None:
    server = a_server()
    slow, quick, *_ = server.tick()
    oldest = weakref.ref(server.model.vector)
    server.receive(quick.id, quick.device, report())
    middle = weakref.ref(server.model.vector)
    assert server.fetch(slow.id, slow.device) is not None
    last = server.tick()[-1]
    server.receive(last.id, last.device, report())
    del last
    for task in [task for task in server.ledger if task != slow.id]:
        server.lose(task)
    device = slow.device
    del slow, quick, _
    gc.collect()
    assert oldest() is not None
    assert middle() is not None
    (task,) = server.ledger
    assert server.ledger[task].task.device == device
    server.lose(task)
    gc.collect()
    assert oldest() is None
    assert middle() is None


def play(server: Server, rounds: range) -> list[Any]:
    """A fixed script of starts, fetches, uploads, losses and rubbish: what the server answered to each."""
    answers: list[Any] = []
    for number in rounds:
        answers += [(task.id, task.device, task.model.version, task.lr, task.seed) for task in server.tick()]
        tasks = sorted(server.ledger)
        asking = tasks[number % len(tasks)]
        fresh = server.fetch(asking, server.ledger[asking].task.device)
        answers.append(None if fresh is None else fresh.version)
        done = tasks[(7 * number) % len(tasks)]
        value = float("nan") if number % 5 == 4 else float(number)
        device = server.ledger[done].task.device
        decision = server.lose(done) if number % 4 == 3 else server.receive(done, device, report(value))
        made = decision.aggregation
        answers.append((decision.verdict, decision.staleness, made and [upload.task for upload in made.uploads]))
        answers.append((server.model.version, server.model.vector.tolist(), repr(server.counters)))
    return answers


@pytest.mark.parametrize("schedule", [Periodic(2, 8), Periodic(3, 9, buffer=3), Rounds(4)], ids=str)
def test_a_restored_server_takes_the_same_decisions(schedule: Schedule, tmp_path: Path) -> None:
    whole, cut = a_server(schedule, max_staleness=4), a_server(schedule, max_staleness=4)
    expected = play(whole, range(40))
    answers = play(cut, range(17))
    checkpoint.write(cut.state(), tmp_path / "state")
    restored = a_server(schedule, max_staleness=4)
    restored.restore(checkpoint.read(tmp_path / "state"))
    answers += play(restored, range(17, 40))
    assert answers == expected
    assert restored.aggregator.state() == whole.aggregator.state()


def test_a_checkpoint_stores_each_version_once(tmp_path: Path) -> None:
    server = a_server(Periodic(12, 12))
    server.tick()
    state = server.state()
    tensors: dict[str, torch.Tensor] = {}
    codec.encode(state, tensors)
    assert len(tensors) == 2  # that one model, and the list of idle devices
