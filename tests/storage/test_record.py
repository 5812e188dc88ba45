"""The run directory's growing files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedasmu import Experiment
from fedasmu.events import Delivered, Event, Fetched, Lost, Renewed, Started, Verdict, of_line
from fedasmu.pools.contract import Answer
from fedasmu.pools.inline import Inline
from fedasmu.storage.record import TOGETHER, Record
from helpers.blobs import blobs, settings, softmax


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=lambda name: 1 / 0) for line in (directory / "events.jsonl").open()]


def test_a_methods_notes_never_replace_our_own_fields(tmp_path: Path) -> None:
    record = Record(tmp_path)
    notes = {"tasks": 99, "time": 0.0, "event": "?", "slot": 4, "100%s": "%d", "yes": True}
    record.write(Renewed(1.5, 2, [3], [0.5], notes))
    record.close()
    expected = {"time": 1.5, "event": "version", "version": 2, "tasks": [3], "weights": [0.5], "slot": 4}
    expected |= {"100%s": "%d", "yes": True}
    assert lines(tmp_path) == [expected]


def test_every_line_is_strict_json_even_when_a_loss_is_not_finite(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.write(Delivered(0.0, 1, 2, 3, 4, Verdict.REFUSED, math.nan, {"beta": math.inf}))
    record.close()
    (line,) = lines(tmp_path)
    assert (line["loss"], line["beta"], line["verdict"]) == ("nan", "inf", "refused")
    again = of_line(line)
    assert isinstance(again, Delivered)
    assert math.isnan(again.loss)


EVENTS: list[Event] = [
    Started(0.0, 3, 1, 7),
    Fetched(0.5, 3, 1, None),
    Fetched(0.5, 3, 1, 8),
    Delivered(1.0, 3, 1, 7, 2, Verdict.STALE, 0.25, {"slot": 2}),
    Lost(1.5, 4, 0),
    Renewed(2.0, 8, [3, 5], [0.5, 0.25], {"lambda": 1.0}),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_read_back_as_it_was_written(event: Event, tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.write(event)
    record.close()
    (line,) = lines(tmp_path)
    assert list(line)[:2] == ["time", "event"]
    assert of_line(line) == event


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"event": "nap"}, "event = 'nap': there is start, fetch, upload, lost, version"),
        ({"time": 0.0}, "event = None"),
        ({"event": "start", "time": 0.0, "task": 1, "device": 2}, "a line of kind start has no version"),
    ],
)
def test_a_foreign_line_is_named(line: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_line(line)


def test_what_has_happened_can_be_read_while_a_long_computation_is_waited_for(tmp_path: Path) -> None:
    waited: list[int] = []

    class Slow(Inline):
        def ready(self, ticket: int) -> bool:
            return False

        def result(self, ticket: int) -> Answer:
            job = self._jobs[ticket]
            if job.task >= 0:
                waited.append(job.task)
                assert job.task in [line["task"] for line in lines(tmp_path / "run") if line["event"] == "start"]
            return super().result(ticket)

    experiment = Experiment(settings(stop={"uploads": 9}), model=softmax, data=blobs())
    experiment.run(tmp_path / "run", workers=lambda site: Slow(site.perform))
    assert len(waited) >= 9


def test_lines_come_out_as_they_were_written_however_many_there_are_and_when_it_is_saved(tmp_path: Path) -> None:
    record = Record(tmp_path)
    started = [Started(float(task), task, 0, 0) for task in range(2 * TOGETHER + 3)]
    for event in started[:5]:
        record.write(event)
    saved = record.state()
    for event in started[5:]:
        record.write(event)
    record.close()
    assert [of_line(line) for line in lines(tmp_path)] == started
    again = Record(tmp_path)
    again.write(started[0])  # of a run that was killed before it wrote this line
    again.restore(saved)
    again.write(started[5])
    again.close()
    assert [of_line(line) for line in lines(tmp_path)] == started[:6]
