"""Notes: a method's own type on both sides, a table in between, and nothing foreign becomes a note."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator
from fedasmu.encoding.note import of_line, of_table, table
from fedasmu.events import Verdict
from fedasmu.protocol import Model, Report, Upload
from fedasmu.schedule import Periodic
from fedasmu.server.core import Server
from fedasmu.storage import checkpoint


@dataclass(frozen=True, slots=True)
class Told:
    steps: int
    share: float | None = None
    gradient: Tensor | None = None


def test_a_note_crosses_as_a_table_without_what_it_does_not_say() -> None:
    assert table(Told(3, 0.5)) == {"steps": 3, "share": 0.5}
    assert of_table(Told, table(Told(3))) == Told(3)
    assert of_table(Told, {"steps": 3, "share": 1, "epochs": 7}) == Told(3, 1)  # epochs is not its business


@pytest.mark.parametrize(
    "found", [None, [], "steps", {}, {"steps": None}, {"steps": "3"}, {"steps": True}, {"steps": 1.0}]
)
def test_what_is_no_note_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match=r"a note is a table|Told\.steps cannot be a"):
        of_table(Told, found)
    assert of_line(Told, {"steps": 2, "share": "nan"}) == Told(2)  # a line has the other fields all the same


class Counting(Aggregator):
    note_type = Told

    def plausible(self, upload: Upload) -> bool:
        note: Told = upload.note
        return note.steps < 10

    def aggregate(self, current: Model, uploads: Any) -> Aggregate:
        return Aggregate(current.vector + sum(upload.note.steps for upload in uploads), [1.0] * len(uploads))


def server(buffer: int = 1) -> Server:
    start = Model(0, torch.zeros(2))
    return Server(start, Periodic(2, 2, buffer), Counting(), 4, seed=0, learning_rate=lambda uploads: 0.1)


@pytest.mark.parametrize(
    ("note", "verdict"),
    [
        ({"steps": 3}, Verdict.ACCEPTED),
        ({"steps": 30}, Verdict.REFUSED),
        ({}, Verdict.REFUSED),
        (None, Verdict.REFUSED),
    ],
)
def test_a_server_half_meets_its_own_type_or_nothing(note: Any, verdict: str) -> None:
    here = server()
    task, _ = here.tick()
    assert here.receive(task.id, task.device, Report(torch.ones(2), 5, 0.5, note)).verdict == verdict
    assert here.model.vector.tolist() == ([3.0, 3.0] if verdict == Verdict.ACCEPTED else [0.0, 0.0])


def test_an_upload_that_waits_has_its_note_after_a_resume(tmp_path: Path) -> None:
    first, second = server(buffer=2), server(buffer=2)
    task, other = first.tick()
    first.receive(task.id, task.device, Report(torch.ones(2), 5, 0.5, {"steps": 3}))
    checkpoint.write(first.state(), tmp_path / "checkpoint")
    second.restore(checkpoint.read(tmp_path / "checkpoint"))
    second.receive(other.id, other.device, Report(torch.ones(2), 5, 0.5, {"steps": 4}))
    assert second.model.vector.tolist() == [7.0, 7.0]
