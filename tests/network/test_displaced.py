"""Displacements over the wire: the simulation's bits in fewer bytes, and nothing is believed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedasmu import Result
from fedasmu.encoding.displacement import EXPONENTS, Reference
from fedasmu.encoding.rounding import CODES, Code, Float14, Float16
from fedasmu.network import client as clients
from fedasmu.network import wire
from fedasmu.network.client import Client
from fedasmu.network.replay import replay
from fedasmu.protocol import Model, Report, Task
from fedasmu.server.transfer import label
from fedasmu.storage.record import differing
from fedasmu.vector import Layout
from helpers.cutting import cutting
from helpers.federation import Federation, enrolled, scripted

FLOAT16, FLOAT14 = Float16(), Float14()
CODED = pytest.mark.parametrize("code", CODES.values(), ids=CODES)
HALF: dict[str, Any] = {"transfer": {"precision": "float16"}}


class Normal(nn.Module):
    """Four trainable numbers, three statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("variance", torch.ones(3))


LAYOUT = Layout.of(Normal())
SIZE = LAYOUT.size
HELD = Reference(torch.linspace(-1, 1, SIZE), LAYOUT, FLOAT16, "3.7")
ROUNDED = HELD.vector + torch.tensor([0.5, -0.25, 0.0, 1.0, 1 / 3, 1 / 3, 1 / 3])  # exact as a displacement


def raw(fields: dict[str, Any], rest: bytes) -> bytes:
    head = json.dumps(fields).encode()
    return wire.PREFIX.pack(wire.MAGIC, len(head)) + head + rest


def like(code: Code) -> Reference:
    """The same model held, in a run with this code."""
    return replace(HELD, code=code)


@CODED
def test_a_task_comes_out_as_it_went_in(code: Code) -> None:
    mask = torch.tensor([True, False])
    task, held = Task(5, 3, Model(8, ROUNDED), 0.1, 9, {"mask": mask}, 1.0), like(code)
    whole, half = (b"".join(wire.task_frame(task, one)) for one in (None, held))
    saved = 4 * 4 - code.dtype.itemsize * code.length(4)
    assert len(wire.head(whole)[1]) - len(wire.head(half)[1]) == saved == (8 if code is CODES["float16"] else 9)
    assert wire.is_displaced(half)
    assert not wire.is_displaced(whole)
    for frame in (whole, half):
        found = wire.read_task(frame, SIZE, held)
        assert torch.equal(found.model.vector, ROUNDED)
        assert torch.equal(found.note["mask"], mask)


@CODED
def test_a_model_that_would_arrive_as_another_goes_whole(code: Code) -> None:
    vector, held = HELD.vector + 1 / 3, like(code)
    assert not wire.is_displaced(b"".join(wire.model_frame(Model(8, vector), held)))
    half = b"".join(wire.model_frame(Model(8, ROUNDED), held))
    assert wire.is_displaced(half)
    assert torch.equal(wire.read_model(half, SIZE, held).vector, ROUNDED)


@CODED
def test_a_report_is_rounded_and_its_statistics_are_not(code: Code) -> None:
    vector, held = HELD.vector + 1 / 3, like(code)
    frame = wire.report_frame(Report(vector, 5, 0.5, {"beta": 0.25}), {}, held)
    found = wire.read_report(frame, SIZE, {}, 5, known=[None, held])
    way = held.to(vector)
    assert way is not None
    assert torch.equal(found.vector, held.plus(way))
    assert not torch.equal(found.vector[:4], vector[:4])
    assert torch.equal(found.vector[4:], vector[4:])
    assert found.note == {"beta": 0.25}
    assert len(frame) in wire.report_lengths(SIZE, {}, held.part)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_report_that_cannot_be_rounded_goes_whole(value: float) -> None:
    vector, far = torch.full((SIZE,), value), Reference(torch.full((SIZE,), -3e38), LAYOUT, FLOAT16, "1")
    frame = wire.report_frame(Report(vector, 5), {}, far)
    assert not wire.is_displaced(frame)
    assert wire.raw(wire.read_report(frame, SIZE, {}, 5, known=[far]).vector) == wire.raw(vector)
    assert len(frame) in wire.report_lengths(SIZE, {}, far.part)


GOOD = wire.report_frame(Report(HELD.vector, 5, 0.5), {}, HELD)
LIES: list[dict[str, Any]] = [
    {"from": "3.8"},
    {"from": 3.7},
    {"from": None},
    {"from": ""},
    {"from": ["3.7"]},
    {"exponent": 127},
    {"exponent": -114},
    {"exponent": 1.0},
    {"exponent": True},
    {"exponent": "15"},
    {"exponent": None},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_lie_about_a_displacement_is_malformed(lie: dict[str, Any]) -> None:
    fields, rest = wire.head(GOOD)
    assert torch.equal(wire.read_report(GOOD, SIZE, {}, 5, known=[HELD]).vector, HELD.vector)
    with pytest.raises(wire.Malformed):
        wire.read_report(raw(fields | lie, bytes(rest)), SIZE, {}, 5, known=[HELD])


@pytest.mark.parametrize(
    "known", [[], [None], [Reference(HELD.vector, LAYOUT, FLOAT16, "4.7")]], ids=["none", "off", "other"]
)
def test_a_displacement_from_nowhere_is_malformed(known: list[Reference | None]) -> None:
    with pytest.raises(wire.Malformed, match="not known here"):
        wire.read_report(GOOD, SIZE, {}, 5, known=known)


@CODED
@pytest.mark.parametrize("change", [-1, 1, 7, 8])
def test_a_displacement_has_one_length(change: int, code: Code) -> None:
    held = like(code)
    good = wire.report_frame(Report(HELD.vector, 5, 0.5), {}, held)
    data = good[:change] if change < 0 else good + bytes(change)
    with pytest.raises(wire.Malformed, match="length"):
        wire.read_report(data, SIZE, {}, 5, known=[held])
    fields, rest = wire.head(good)
    plain = {key: value for key, value in fields.items() if key not in ("from", "exponent")}
    with pytest.raises(wire.Malformed, match="length"):
        wire.read_report(raw(plain, bytes(rest)), SIZE, {}, 5, known=[held])


@pytest.mark.parametrize(("sent", "run"), [(FLOAT16, FLOAT14), (FLOAT14, FLOAT16)])
def test_a_displacement_in_another_code_than_the_runs_is_malformed(sent: Code, run: Code) -> None:
    frame = wire.report_frame(Report(HELD.vector, 5, 0.5), {}, like(sent))
    with pytest.raises(wire.Malformed, match="length"):
        wire.read_report(frame, SIZE, {}, 5, known=[like(run)])


def test_bits_of_no_weight_are_malformed() -> None:
    """Six weights are twice seven bytes, of which the last 28 bits stand for nothing."""
    layout = Layout.of(nn.Linear(6, 1, bias=False))
    held = Reference(torch.zeros(6), layout, FLOAT14, "1")
    good = wire.report_frame(Report(torch.ones(6), 5), {}, held)
    assert wire.read_report(good, 6, {}, 5, known=[held]).vector.tolist() == [1.0] * 6
    for place, bits in ((-1, 0x01), (-1, 0x80), (-2, 0x01), (-3, 0xFF), (-4, 0x10)):
        bad = bytearray(good)
        bad[place] |= bits
        with pytest.raises(wire.Malformed, match="not zero"):
            wire.read_report(bad, 6, {}, 5, known=[held])


@given(st.binary(min_size=7, max_size=7), st.integers(EXPONENTS[0], EXPONENTS[-1]))
def test_any_seven_bytes_lead_somewhere_that_is_no_nan(data: bytes, exponent: int) -> None:
    """Nothing that four words of float14 can say is not a number; whether it is too far is for the server to say."""
    held = like(FLOAT14)
    fields, rest = wire.head(wire.report_frame(Report(HELD.vector, 5), {}, held))
    frame = raw(fields | {"exponent": exponent}, data + bytes(rest[7:]))
    assert not wire.read_report(frame, SIZE, {}, 5, known=[held]).vector.isnan().any()


def test_halves_that_are_not_finite_are_left_to_the_server_to_refuse() -> None:
    fields, rest = wire.head(GOOD)
    halves = torch.full((4,), math.inf, dtype=torch.float16)
    found = wire.read_report(raw(fields, bytes(wire.raw(halves)) + bytes(rest[8:])), SIZE, {}, 5, known=[HELD])
    assert bool(torch.isinf(found.vector[:4]).all())


@pytest.mark.parametrize("precision", CODES)
@pytest.mark.parametrize("name", ["fedasmu", "fedavg", "fedbuff", "asyncdrop", "fedasmu-r", "moon"])
def test_the_network_leaves_the_files_of_the_simulation(tmp_path: Path, name: str, precision: str) -> None:
    federation = scripted(tmp_path, name, network={"keep": "all"}, transfer={"precision": precision})
    federation.run()
    assert federation.serving.script.differing == []
    assert differing(tmp_path / "simulated", federation.path) == []
    summary = Result(federation.path).summary
    assert summary["bytes_up"] < 0.6 * (summary["uploads"] + summary["lost"]) * federation.world.layout.bytes
    assert replay(federation.world, federation.folder).differing == []


def polled(client: Client, size: int, held: Reference | None = None) -> tuple[Task, bool]:
    """A device's task, and whether its model came as a displacement."""
    target = "/v1/task?wait=20" + ("" if held is None else f"&holds={held.label}")
    reply = client.request("GET", target, wait=20.0)
    assert reply.status == 200
    return wire.read_task(reply.body, size, held), wire.is_displaced(reply.body)


def by_hand(client: Client, task: Task, layout: Layout, step: float) -> Reference:
    """Deliver a task. What the device holds from then on."""
    base = Reference(task.model.vector, layout, FLOAT16, str(task.model.version))
    body = wire.report_frame(Report(task.model.vector + step, 1, 0.5), {}, base)
    assert wire.is_displaced(body)
    assert client.request("PUT", f"/v1/tasks/{task.id}/result", body).table["verdict"] == "accepted"
    return Reference(task.model.vector, layout, FLOAT16, label(task.id, task.model))


def test_a_device_that_says_what_it_holds_is_sent_the_difference(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 1000}, network={"gather": 0.0}, **HALF)
    federation.start()
    layout, client = federation.world.layout, enrolled(federation, tmp_path, 0, len(federation.data.shards[0]))
    server = federation.serving.coordinator.server
    first, halved = polled(client, layout.size)
    assert not halved, "the first one is whole"
    held = by_hand(client, first, layout, step=1 / 3)

    second, halved = polled(client, layout.size, held)
    assert halved
    assert not torch.equal(second.model.vector, server.model.vector), "as it arrives, not as it was sent"
    assert torch.equal(second.model.vector, server.ledger[second.id].task.model.vector)
    again, halved = polled(client, layout.size)
    assert not halved, "one that does not say so gets the same model whole"
    assert torch.equal(again.model.vector, second.model.vector)
    assert again.id == second.id
    assert not polled(client, layout.size, Reference(held.vector, layout, FLOAT16, "77.1"))[1]

    by_hand(client, second, layout, step=1 / 3)
    third, halved = polled(client, layout.size)  # a device that was started anew
    assert not halved
    assert torch.equal(third.model.vector, server.model.vector), "the server does not count on what is gone"
    assert federation.serving.coordinator.desk.meter.tally.bytes_down == round(2.5 * layout.bytes)
    federation.stop()


def test_the_rest_of_a_displacement_is_sent_to_its_holder(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 1000}, network={"gather": 0.0}, **HALF)
    federation.start()
    layout, client = federation.world.layout, enrolled(federation, tmp_path, 0, len(federation.data.shards[0]))
    held = by_hand(client, polled(client, layout.size)[0], layout, step=1 / 3)
    task, _ = polled(client, layout.size, held)
    body = b"".join(wire.body(task.model.vector, held))
    assert len(body) == layout.bytes // 2
    target, mark = f"/v1/models/{task.model.version}?from={held.label}", f'"{wire.digest(task.model.vector)}"'
    reply = client._signed("GET", target, b"", 0.0, more={"Range": "bytes=100-", "If-Range": mark})
    assert (reply.status, reply.body) == (206, body[100:])
    reply = client._signed("GET", f"/v1/models/{task.model.version}?from=9.9", b"", 0.0)
    assert reply.body == wire.raw(task.model.vector), "told from what nobody knows, it is whole"
    federation.stop()


def large() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 3000), nn.ReLU(), nn.Linear(3000, 2))  # 276 kB, or half of that


def test_a_run_ends_though_no_connection_lasts_for_a_displacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FIRST", 0.01)
    pacing = {"period": 0.02, "max_in_flight": 1, "count": 1}
    options: dict[str, Any] = {"stop": {"uploads": 4}, "pacing": pacing, "network": {"gather": 0.0}, **HALF}
    federation = Federation(tmp_path, factory=large, algorithm={"name": "fedasmu"}, **options)
    federation.start()
    with cutting(federation.folder.port, after=60_000) as proxy:
        federation.work(federation.device(0, url=f"https://127.0.0.1:{proxy.port}", model=large))
        federation.wait()
        assert proxy.cuts >= 4
    summary = Result(federation.path).summary
    assert (summary["uploads"], summary["lost"]) == (4, 0)
    assert summary["bytes_up"] == 2 * federation.world.layout.bytes


def test_a_device_that_holds_another_model_than_the_server_thinks_asks_for_the_whole(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 6}, network={"gather": 0.0}, **HALF)
    federation.start()
    device = federation.device(0)
    device.join()
    while device.tasks < 2:
        device.step()
    held = device._held
    assert held is not None
    device._held = Reference(
        held.vector + 1, held.layout, held.code, held.label
    )  # as if the server's disk had been set back
    before = device.tasks
    while device.tasks == before:
        device.step()
    federation.work(device)
    federation.wait()
    assert Result(federation.path).summary["uploads"] == 6
