"""The desk: what reaches it is decided, written down and counted; what is not in the ledger leaves no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedasmu.algorithms.fedavg import Average
from fedasmu.events import Delivered, Event, Fetched, Lost, Measured, Renewed, Started, Verdict
from fedasmu.pools import Inline, timing_only
from fedasmu.protocol import Model, Report
from fedasmu.schedule import Periodic
from fedasmu.server.core import Server
from fedasmu.server.desk import Desk
from fedasmu.storage.record import Record


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Ten devices, a model of two numbers that counts as 8 bytes, an evaluation every second upload."""
    server = Server(Model(0, torch.zeros(2)), Periodic(2, 4), Average([5] * 10), 10, 0, lambda uploads: 0.1)
    return Desk(server, Record(tmp_path), Inline(timing_only), model_bytes=8, evaluate_every=2)


def report(**note: torch.Tensor) -> Report:
    return Report(torch.ones(2), 5, 0.25, note)


def test_watchers_are_told_every_line_in_order(desk: Desk) -> None:
    lines: list[Event | Measured] = []
    desk.watchers.append(lines.append)
    desk.begin(0.0)
    first, second = desk.start(1.0, [3, 7])
    desk.receive(2.0, first.id, 3, report())
    fresh = desk.fetch(3.0, second.id, 7)
    desk.receive(4.0, second.id, 7, report(extra=torch.zeros(5)))
    (third,) = desk.start(5.0, [1])
    desk.lose(6.0, third.id)
    desk.flush(7.0)
    assert fresh is not None
    assert [line for line in lines if not isinstance(line, Measured)] == [
        Started(1.0, 0, 3, 0),
        Started(1.0, 1, 7, 0),
        Delivered(2.0, 0, 3, 0, 1, Verdict.ACCEPTED, 0.25, {}),
        Renewed(2.0, 1, [0], [1.0], {}),
        Fetched(3.0, 1, 7, 1),
        Delivered(4.0, 1, 7, 0, 2, Verdict.ACCEPTED, 0.25, {}),
        Renewed(4.0, 2, [1], [1.0], {}),
        Started(5.0, 2, 1, 2),
        Lost(6.0, 2, 1),
    ]
    measured = [line for line in lines if isinstance(line, Measured)]
    assert [(line.time, line.uploads, line.bytes_down, line.bytes_up) for line in measured] == [
        (0.0, 0, 0, 0),
        (4.0, 2, 3 * 8, 2 * 8 + 20),  # two models and a fresh one down; two models and five numbers up
    ]
    assert desk.mean_staleness == 1.5


def test_bytes_on_their_way_count_once_whether_they_arrive_or_not(desk: Desk) -> None:
    first, second = desk.start(0.0, [0, 1])
    assert desk.sending(first.id, report()) == desk.sending(second.id, report()) == 8
    desk.receive(1.0, first.id, 0, report())
    desk.lose(1.0, second.id)
    assert desk.meter.tally.bytes_up == 16


def test_what_is_not_in_the_ledger_leaves_no_trace(desk: Desk, tmp_path: Path) -> None:
    desk.begin(0.0)
    desk.start(1.0, [3])
    before, tally, counters = desk.record.state(), repr(desk.meter.tally), repr(desk.server.counters)
    for task, device in ((0, 4), (1, 3), (-1, -1)):  # another's task, and two that never were
        assert desk.fetch(2.0, task, device) is None
        assert not desk.wanted(task, device)
        assert desk.receive(2.0, task, device, report()).verdict is Verdict.UNKNOWN
        assert desk.lose(2.0, task, device).verdict is Verdict.UNKNOWN
    assert desk.record.state() == before
    assert (repr(desk.meter.tally), repr(desk.server.counters)) == (tally, counters)


@pytest.mark.parametrize("loss", [float("nan"), 10**400, "much", None])
def test_whatever_is_sent_for_a_loss_is_refused_and_written_down(desk: Desk, tmp_path: Path, loss: float) -> None:
    desk.begin(0.0)
    (task,) = desk.start(1.0, [3])
    assert desk.receive(2.0, task.id, 3, Report(torch.ones(2), 5, loss)).verdict is Verdict.REFUSED
    (other,) = desk.start(3.0, [3])
    desk.receive(4.0, other.id, 3, Report(torch.ones(2), 5, 0.25))
    desk.state()  # waits for the evaluation
    assert desk.meter.latest is not None
    assert desk.meter.latest.train_loss == 0.25, "the mean is of those that were taken"
    desk.record.close()
    assert '"verdict":"refused","loss":"nan"' in (tmp_path / "events.jsonl").read_text()
