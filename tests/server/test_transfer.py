"""Models that travel as displacements: what the server merges is what was on the wire, in every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedasmu import Experiment, FederatedData
from fedasmu.algorithms import NAMES, Aggregate, Aggregator
from fedasmu.conformance import Trial, learned, resumes
from fedasmu.encoding.rounding import CODES, Float16
from fedasmu.events import Verdict
from fedasmu.protocol import Model, Report, Task, Upload
from fedasmu.schedule import Periodic
from fedasmu.server.core import Server
from fedasmu.server.transfer import Displaced, Whole
from fedasmu.storage.shelf import Shelf
from fedasmu.vector import Layout
from helpers.blobs import Run, network, outputs

LAYOUT = Layout.of(nn.Linear(1, 1))  # two numbers
FINE = 1 + 2.0**-12  # between two of float16's numbers: as a difference it arrives as 1


class Latest(Aggregator):
    """The global model is what was uploaded last."""

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        return Aggregate(uploads[-1].report.vector, [1.0] * len(uploads))


def a_server(folder: Path, most: int = 10, devices: int = 3) -> Server:
    displaced, schedule = Displaced(LAYOUT, Float16(), Shelf(folder), most), Periodic(count=devices, limit=devices)
    return Server(Model(0, torch.zeros(2)), schedule, Latest(), devices, 0, lambda uploads: 0.1, transfer=displaced)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def delivered(server: Server, task: Task, *values: float) -> Report:
    """A device's model as it arrives, and is merged."""
    report, _ = server.arriving(task.id, Report(numbers(*values), 5))
    server.receive(task.id, task.device, report)
    return report


def start(server: Server, device: int) -> Task:
    (task,) = server.start([device])
    return task


def test_an_upload_arrives_as_its_difference_from_the_task(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    report, part = server.arriving(start(server, 0).id, Report(numbers(FINE, 0.25), 5))
    assert report.vector.tolist() == [1.0, 0.25]
    assert part == 0.5


def test_the_first_model_is_sent_whole_and_the_next_as_a_difference(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    first, other = start(server, 0), start(server, 1)
    assert first.model is server.model
    assert server.ledger[first.id].part == 1.0
    delivered(server, first, 4.0, 4.0)
    server.receive(other.id, 1, Report(numbers(FINE, FINE), 5))  # as nothing that travelled ever is
    second = start(server, 0)
    assert second.model.version == server.model.version == 2
    assert server.model.vector.tolist() == [FINE, FINE]
    assert second.model.vector.tolist() == [1.0, 1.0], "told from the zeros that it was sent first"
    assert server.ledger[second.id].part == 0.5


def test_what_was_sent_for_a_lost_task_is_not_counted_on(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    delivered(server, start(server, 0), 1.0, 1.0)
    before = server.transfer.held(0)
    server.lose(start(server, 0).id)
    after = server.transfer.held(0)
    assert before is not None
    assert after is not None
    assert (before.label, after.label) == ("0.0", "0.0")
    assert torch.equal(before.vector, after.vector)


def test_a_fresh_model_is_told_from_the_tasks_and_an_upload_from_the_fresh_one(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    slow, quick = start(server, 0), start(server, 1)
    server.receive(quick.id, 1, Report(numbers(FINE, 3.0), 5))
    fresh = server.fetch(slow.id, 0)
    assert fresh is not None
    assert fresh.version == 1
    assert fresh.vector.tolist() == [1.0, 3.0]
    assert server.ledger[slow.id].fresh_part == 0.5
    report, _ = server.arriving(slow.id, Report(numbers(1.0 + 2.0**-13, 3.0), 5))
    assert report.vector.tolist() == [1.0 + 2.0**-13, 3.0], "a small step from the fresh model; a long one from zero"
    server.receive(slow.id, 0, report)
    held = server.transfer.held(0)
    assert held is not None
    assert held.label == f"{slow.id}.1"
    assert held.vector.tolist() == [1.0, 3.0]


def test_the_server_keeps_the_models_of_those_who_delivered_last(tmp_path: Path) -> None:
    server = a_server(tmp_path, most=1)
    for device in (0, 1):
        delivered(server, start(server, device), 1.0, 1.0)
    assert (server.transfer.label(0), server.transfer.held(0)) == ("", None)
    assert server.ledger[start(server, 0).id].part == 1.0
    assert server.ledger[start(server, 1).id].part == 0.5
    assert len(list(tmp_path.iterdir())) <= 1


def test_what_is_forgotten_is_sent_whole(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    delivered(server, start(server, 0), 1.0, 1.0)
    server.transfer.forget(0)
    server.transfer.forget(2)  # of whom nothing is known
    assert server.ledger[start(server, 0).id].part == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_not_finite_arrives_as_it_is_and_is_refused(tmp_path: Path, value: float) -> None:
    server = a_server(tmp_path)
    task = start(server, 0)
    report, part = server.arriving(task.id, Report(numbers(value, 1.0), 5))
    assert part == 1.0
    assert server.receive(task.id, 0, report).verdict is Verdict.REFUSED


@pytest.mark.parametrize("vector", ["a text", None, torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
def test_what_is_no_model_arrives_as_it_is_and_is_refused(tmp_path: Path, vector: Any) -> None:
    server = a_server(tmp_path)
    task = start(server, 0)
    report, _ = server.arriving(task.id, Report(vector, 5))
    assert server.receive(task.id, 0, report).verdict is Verdict.REFUSED


def test_a_restored_server_knows_what_devices_hold(tmp_path: Path) -> None:
    server = a_server(tmp_path)
    for device in (1, 0):
        delivered(server, start(server, device), 1.0, 1.0)
    start(server, 1)
    shelf = Shelf(tmp_path)
    again = a_server(tmp_path)
    again.transfer = Displaced(LAYOUT, Float16(), shelf, 10)
    assert isinstance(server.transfer, Displaced)
    shelf.restore(server.transfer._shelf.state())
    again.restore(server.state())
    assert [again.transfer.label(device) for device in (0, 1, 2)] == ["1.1", "0.0", ""]
    assert again.ledger[2].part == 0.5
    one, other = start(again, 0), start(server, 0)
    assert torch.equal(one.model.vector, other.model.vector)


def test_a_checkpoint_from_before_there_was_a_choice_is_read() -> None:
    server = Server(Model(0, torch.zeros(2)), Periodic(2, 2), Latest(), 2, 0, lambda uploads: 0.1)
    start(server, 0)
    state = server.state()
    del state["transfer"]
    state["ledger"] = [line[:4] for line in state["ledger"]]
    again = Server(Model(0, torch.zeros(2)), Periodic(2, 2), Latest(), 2, 0, lambda uploads: 0.1)
    again.restore(state)
    assert again.ledger[0].part == again.ledger[0].fresh_part == 1.0
    assert isinstance(again.transfer, Whole)


class Halving(Trial):
    precision = "float16"

    def experiment(self, model: Callable[[], nn.Module], data: FederatedData, **changes: Any) -> Experiment:
        return super().experiment(model, data, **{"transfer.precision": self.precision}, **changes)


class Packing(Halving):
    precision = "float14"


KINDS = pytest.mark.parametrize("kind", [Halving, Packing])


@KINDS
@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_what_arrives(name: str, kind: type[Halving], tmp_path: Path) -> None:
    result = kind({"name": name}, tmp_path).run(stop__uploads=24, fleet__dropout=0.1)
    assert (result.summary["uploads"], result.summary["refused"]) == (24, 0)
    assert all(bool(torch.isfinite(one).all()) for one in result.state_dict.values())


# The check's runs have lost devices, statistics of BatchNorm, and a kill in the middle.
@pytest.mark.usefixtures("no_waiting_for_the_disk")
@KINDS
@pytest.mark.parametrize("name", ["fedasmu", "fedasmu-r", "fedavg", "fedbuff", "asyncdrop", "moon"])
def test_the_bytes_are_the_same_after_a_kill(name: str, kind: type[Halving], tmp_path: Path) -> None:
    resumes(kind({"name": name}, tmp_path))


@KINDS
@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "fedbuff", "asyncdrop"])
def test_methods_still_learn(name: str, kind: type[Halving], tmp_path: Path) -> None:
    learned(kind({"name": name}, tmp_path).run())


SLOW = {"down_mbps": 0.001, "up_mbps": 0.001, "seconds_per_sample": 1e-6}  # the links are all that takes time


def displaced(precision: str) -> int:
    """Bytes of a displacement: each parameter has two, or four have seven; each statistic has four."""
    layout = Layout.of(network())
    statistics = 4 * (layout.size - layout.trainable)
    return statistics + (2 * layout.trainable if precision == "float16" else 7 * math.ceil(layout.trainable / 4))


@pytest.mark.parametrize(("precision", "part"), [("float16", 0.8), ("float14", 0.75)])
def test_fewer_bytes_take_less_time(precision: str, part: float, run: Run) -> None:
    """Ten devices, of which each is sent one whole model, and displacements from then on."""
    whole = run(model=network, fleet=SLOW, local={"batch": 15}).summary
    summary = run(model=network, fleet=SLOW, local={"batch": 15}, transfer={"precision": precision}).summary
    size = displaced(precision)
    assert summary["bytes_up"] % size == 0
    assert summary["bytes_up"] >= summary["uploads"] * size
    assert (summary["bytes_down"] - 10 * Layout.of(network()).bytes) % size == 0
    assert summary["virtual_seconds"] < part * whole["virtual_seconds"]


@pytest.mark.parametrize("precision", CODES)
def test_the_order_of_events_alone_can_be_simulated(precision: str, run: Run) -> None:
    timed = run(model=network, timing_only=True, transfer={"precision": precision}).summary
    trained = run(model=network, local={"batch": 15}, transfer={"precision": precision}).summary
    assert timed["uploads"] == trained["uploads"] == 60
    assert timed["bytes_up"] % displaced(precision) == 0


def test_what_is_off_changes_nothing(run: Run) -> None:
    assert outputs(run()) == outputs(run(transfer={"precision": "float32", "held": 3}))
