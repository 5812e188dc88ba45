"""The run directory's growing files."""

from __future__ import annotations

import json
from pathlib import Path

from fedasmu.record import Record


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=lambda name: 1 / 0) for line in (directory / "events.jsonl").open()]


def test_a_methods_notes_never_replace_our_own_fields(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.event(1.5, "upload", {"task": 3}, {"task": 99, "time": 0.0, "event": "?", "slot": 4})
    record.close()
    assert lines(tmp_path) == [{"time": 1.5, "event": "upload", "task": 3, "slot": 4}]


def test_every_line_is_strict_json_even_when_a_loss_is_not_finite(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.event(0.0, "upload", {"loss": float("nan"), "task": 1}, {"beta": float("inf")})
    record.close()
    assert lines(tmp_path) == [{"time": 0.0, "event": "upload", "loss": "nan", "task": 1, "beta": "inf"}]
