"""What a run has written since somebody last looked.

A run that is killed and resumed cuts its files back and writes the same bytes again, so whoever has read further simply
waits. Only another run in the same place (another file, by its number on the disk) is read from its beginning.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20  # bytes in one go: a message that a browser takes without a pause
FILES = ("events.jsonl", "metrics.csv", "wall.csv")


@dataclass(frozen=True, slots=True)
class Place:
    """How far somebody has read a run: which file it was, and the bytes of each that are known."""

    file: int = 0
    events: int = 0
    metrics: int = 0
    wall: int = 0

    @classmethod
    def parse(cls, text: str) -> Place:
        """What a browser sends back, which may be anything."""
        parts = text.split("-")
        numbers = [int(part) for part in parts if part.isdecimal() and len(part) < 20]
        return cls(*numbers) if len(numbers) == len(parts) == 4 else cls()

    def __str__(self) -> str:
        return f"{self.file}-{self.events}-{self.metrics}-{self.wall}"


@dataclass(frozen=True, slots=True)
class News:
    place: Place
    anew: bool  # what was read before belongs to another run
    events: str = ""
    metrics: str = ""
    wall: str = ""

    def __bool__(self) -> bool:
        return bool(self.anew or self.events or self.metrics or self.wall)


def news(directory: Path, known: Place) -> News:
    """The whole lines that have come since. Empty when there is no run yet, or nothing new."""
    try:
        file = os.stat(directory / FILES[0]).st_ino
    except OSError:
        return News(known, anew=False)
    anew = known.file not in (0, file)
    start = Place(file) if anew or not known.file else known
    offsets = start.events, start.metrics, start.wall
    parts = [_lines(directory / name, offset) for name, offset in zip(FILES, offsets, strict=True)]
    place = Place(file, *(offset + len(part) for offset, part in zip(offsets, parts, strict=True)))
    return News(place, anew, *(part.decode(errors="replace") for part in parts))


def _lines(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            read = file.read(CHUNK)
    except OSError:
        return b""
    return read[: read.rfind(b"\n") + 1]
