"""Frames: what goes in comes out to the bit, and nothing else comes in."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedasmu.network import bounds, wire
from fedasmu.protocol import Evaluated, Model, Report, Task

SIZE = 7
NAMES = st.from_regex(bounds.NAME, fullmatch=True)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=64)
)
VECTORS = st.lists(st.floats(width=32), min_size=SIZE, max_size=SIZE).map(torch.tensor)
MASKS = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE).map(torch.tensor)
NOTES = st.dictionaries(NAMES, SCALARS, max_size=6)
GRADIENT = {"gradient": (torch.float32, (3, 2))}


def same(one: Tensor, other: Tensor) -> bool:
    """To the bit, NaN and signed zeros too."""
    return one.dtype == other.dtype and one.shape == other.shape and wire.raw(one) == wire.raw(other)


@settings(max_examples=150, deadline=None)
@given(
    VECTORS,
    NOTES,
    st.none() | MASKS,
    st.integers(0, 2**63 - 1),
    st.floats(0, 10, allow_nan=False),
    st.integers(0, 2**40),
)
def test_a_task_comes_out_as_it_went_in(
    vector: Tensor, note: dict[str, Any], mask: Any, seed: int, lr: float, version: int
) -> None:
    note = note if mask is None else {**note, "mask": mask}
    task = Task(5, 3, Model(version, vector), lr, seed, note, 0.5)
    found = wire.read_task(b"".join(wire.task_frame(task)), SIZE)
    assert (found.id, found.device, found.lr, found.seed, found.share) == (5, 3, lr, seed, 0.5)
    assert found.model.version == version
    assert same(found.model.vector, vector)
    assert {**found.note, "mask": None} == {**note, "mask": None}
    assert mask is None or same(found.note["mask"], mask)


@settings(max_examples=150, deadline=None)
@given(VECTORS, NOTES, st.floats(), st.booleans())
def test_a_report_comes_out_as_it_went_in(vector: Tensor, note: dict[str, Any], loss: float, heavy: bool) -> None:
    attachments = GRADIENT if heavy else {}
    gradient = torch.linspace(-1, 1, 6).view(3, 2)
    sent = {name: value for name, value in note.items() if name != "gradient"}
    report = Report(vector, 11, loss, {**sent, "gradient": gradient} if heavy else sent)
    data = wire.report_frame(report, attachments)
    assert len(data) in wire.report_lengths(SIZE, attachments)
    found = wire.read_report(data, SIZE, attachments, examples=99)
    assert found.examples == 99, "the server's own number, whatever the device has"
    assert found.loss == loss or (math.isnan(loss) and math.isnan(found.loss))
    assert same(found.vector, vector)
    assert not heavy or same(found.note["gradient"], gradient)
    assert {name: value for name, value in found.note.items() if name != "gradient"} == sent
    assert [type(found.note[name]) for name in sent] == [type(value) for value in sent.values()]


def test_a_note_that_is_not_finite_makes_a_report_that_is_refused() -> None:
    report = Report(torch.zeros(SIZE), 1, 0.5, {"reward": math.inf, "slot": 3})
    found = wire.read_report(wire.report_frame(report, {}), SIZE, {}, 1)
    assert math.isnan(found.loss)
    assert found.note == {}


@settings(deadline=None)
@given(VECTORS, st.integers(0, 2**50))
def test_a_model_comes_out_as_it_went_in(vector: Tensor, version: int) -> None:
    found = wire.read_model(b"".join(wire.model_frame(Model(version, vector))), SIZE)
    assert found.version == version
    assert same(found.vector, vector)


BODY = bytes(4 * SIZE)


def raw(head: bytes | str, body: bytes = BODY) -> bytes:
    head = head.encode() if isinstance(head, str) else head
    return wire.PREFIX.pack(wire.MAGIC, len(head)) + head + body


def report(**fields: object) -> bytes:
    return raw(json.dumps({"loss": 0.5, "note": {}} | fields))


def noted(note: str) -> bytes:
    return raw('{"loss": 0.5, "note": ' + note + "}")


GOOD = report()
HOSTILE = {
    "nothing": b"",
    "three bytes": b"FAS",
    "another magic": b"FAS2" + GOOD[4:],
    "a pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "a zip, as torch.save writes": b"PK\x03\x04" + bytes(60),
    "a head beyond the end": wire.PREFIX.pack(wire.MAGIC, 2**32 - 1) + GOOD[8:],
    "a head of 4 GB announced": wire.PREFIX.pack(wire.MAGIC, 2**32 - 1),
    "a head one byte too long": raw(b'{"loss":0.5,"note":{},"a":"' + b"x" * wire.HEAD + b'"}'),
    "an empty head": raw(b""),
    "a head that is no JSON": raw(b"{loss"),
    "a head that is no UTF-8": raw(b'{"loss": 0.5, "note": {"a": "\xff"}}'),
    "a head with a NUL": raw(b'{"loss": 0.5, "note": {}}\x00'),
    "a list": raw("[]"),
    "a number": raw("1"),
    "null": raw("null"),
    "a deep list": raw("[" * 8000 + "]" * 8000),
    "a deep note": noted('{"a":' * 2000 + "1" + "}" * 2000),
    "a key twice": raw('{"loss": 0.5, "loss": 0.5, "note": {}}'),
    "a note's key twice": noted('{"a": 1, "a": 2}'),
    "no loss": raw('{"note": {}}'),
    "no note": raw('{"loss": 0.5}'),
    "one key too many": report(examples=10**9),
    "a version from the device": report(version=7),
    "NaN as a number": raw('{"loss": NaN, "note": {}}'),
    "Infinity as a number": raw('{"loss": Infinity, "note": {}}'),
    "1e999": raw('{"loss": 1e999, "note": {}}'),
    "-1e999 in a note": noted('{"a": -1e999}'),
    "NaN in a note": noted('{"a": NaN}'),
    "text for a loss": report(loss="low"),
    "true for a loss": report(loss=True),
    "null for a loss": report(loss=None),
    "a list for a loss": report(loss=[1]),
    "a number of 5,000 digits": raw('{"loss": ' + "9" * 5000 + ', "note": {}}'),
    "a number beyond 2^53": report(note={"a": 2**53}),
    "a number below -2^53": report(note={"a": -(2**53)}),
    "a note that is a list": report(note=[1, 2]),
    "a note that is null": report(note=None),
    "65 names": report(note={f"n{number}": 0 for number in range(65)}),
    "a name of 33 letters": report(note={"a" * 33: 0}),
    "an empty name": report(note={"": 0}),
    "a name in capitals": report(note={"Beta": 0}),
    "a dunder path": report(note={"a.b": 0}),
    "a path for a name": report(note={"../../etc/passwd": 0}),
    "a name with a line break": report(note={"a\n": 0}),
    "a name in other letters": report(note={"\u0430": 0}),
    "a text of 65 characters": report(note={"a": "x" * 65}),
    "a list in a note": report(note={"a": [1]}),
    "a table in a note": report(note={"a": {}}),
    "a tensor's mark in a note": report(note={"a": {"$tensor": "0"}}),
    "no vector": raw('{"loss": 0.5, "note": {}}', b""),
    "a vector one byte short": raw('{"loss": 0.5, "note": {}}', BODY[:-1]),
    "a vector one byte long": raw('{"loss": 0.5, "note": {}}', BODY + b"\x00"),
    "a vector twice": raw('{"loss": 0.5, "note": {}}', BODY * 2),
    "a float64 vector": raw('{"loss": 0.5, "note": {}}', bytes(8 * SIZE)),
}


def test_the_good_one_is_good() -> None:
    assert wire.read_report(GOOD, SIZE, {}, 3).loss == 0.5


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_report_is_malformed_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.read_report(data, SIZE, {}, 3)


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_device_takes_no_hostile_task_either(data: bytes) -> None:
    for reader in (wire.read_task, wire.read_model):
        with pytest.raises(wire.Malformed):
            reader(data, SIZE)


TASK = Task(5, 3, Model(2, torch.ones(SIZE)), 0.1, 9, {"mask": torch.ones(SIZE, dtype=torch.bool)}, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "0" * 64},
        {"sha256": None},
        {"id": -1},
        {"id": 1.0},
        {"id": True},
        {"seed": 2**63},
        {"version": "2"},
        {"lr": "0.1"},
        {"share": None},
        {"tensors": []},
        {"tensors": [["mask", "bool", [SIZE]]] * 2},
        {"tensors": [["mask", "object", [SIZE]]]},
        {"tensors": [["mask", ["bool"], [SIZE]]]},
        {"tensors": [["mask", "bool", [2**40, 0]]]},
        {"tensors": [["mask", "bool", [-1, -SIZE]]]},
        {"tensors": [["../mask", "bool", [SIZE]]]},
        {"tensors": [["mask", "float32", [SIZE + 1]]]},
        {"tensors": {"mask": "bool"}},
        {"tensors": [["mask", "bool", [1] * 9]]},
    ],
    ids=str,
)
def test_a_task_with_one_wrong_field_is_malformed(change: dict[str, object]) -> None:
    data = b"".join(wire.task_frame(TASK))
    fields, rest = wire.head(data)
    assert same(wire.read_task(data, SIZE).model.vector, torch.ones(SIZE))
    with pytest.raises(wire.Malformed):
        wire.read_task(raw(json.dumps(fields | change), bytes(rest)), SIZE)


def test_a_truth_value_of_two_is_malformed() -> None:
    data = bytearray().join(wire.task_frame(TASK))
    data[-1] = 2
    with pytest.raises(wire.Malformed, match="truth value"):
        wire.read_task(data, SIZE)


def test_a_head_that_is_too_long_is_not_sent() -> None:
    note = {f"n{number}": "\u1234" * 64 for number in range(64)}
    with pytest.raises(ValueError, match="at most"):
        wire.report_frame(Report(torch.zeros(SIZE), 1, 0.0, note), {})


def test_mutated_frames_are_malformed_or_well_formed_and_nothing_else() -> None:
    """A short form of the million that `benchmarks/network.py attack` sends through the parser."""
    chance = random.Random(5)
    good = wire.report_frame(Report(torch.ones(SIZE), 1, 0.5, {"beta": 0.25, "slot": 3}), {})
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            data = data[: chance.randrange(len(data))]
        try:
            found = wire.read_report(data, SIZE, {}, 1)
        except wire.Malformed:
            continue
        assert found.vector.shape == (SIZE,)
        assert all(not isinstance(value, float) or math.isfinite(value) for value in found.note.values())


@pytest.mark.parametrize("loss", [0.25, math.inf, math.nan])
@pytest.mark.parametrize("right", [0, 3, 9])
def test_what_a_device_measured_comes_out_as_it_went_in(loss: float, right: int) -> None:
    report = Report(torch.ones(SIZE), 5, 1.0, {}, Evaluated(loss, right / 9, 9))
    found = wire.read_report(wire.report_frame(report, {}), SIZE, {}, 5, 9).measured
    assert found is not None
    assert (found.score, found.examples) == (right / 9, 9)
    assert found.loss == loss or (math.isnan(loss) and math.isnan(found.loss))


LIES: list[Any] = [
    None,
    [],
    0.5,
    [0.5],
    [0.5, 10],
    [0.5, -1],
    [0.5, 4.0],
    [0.5, True],
    ["big", 4],
    [[1], 4],
    [0.5, 4, 4],
    {},
]


@pytest.mark.parametrize("told", LIES, ids=repr)
def test_a_lie_about_what_was_measured_is_no_report(told: object) -> None:
    """Of nine examples at most nine are right, and only the server says that there are nine."""
    frame = b"".join(wire.frame({"loss": 1.0, "note": {}, "measured": told}, [torch.ones(SIZE)]))
    with pytest.raises(wire.Malformed):
        wire.read_report(frame, SIZE, {}, 5, 9)


def test_who_holds_nothing_out_tells_nothing_and_who_does_must_tell() -> None:
    silent = wire.report_frame(Report(torch.ones(SIZE), 5), {})
    telling = wire.report_frame(Report(torch.ones(SIZE), 5, measured=Evaluated(0.5, 1.0, 9)), {})
    for frame, held in ((silent, 9), (telling, 0)):
        with pytest.raises(wire.Malformed, match="other keys"):
            wire.read_report(frame, SIZE, {}, 5, held)
