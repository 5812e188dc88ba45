"""One file of the ledger: how an act is laid out in it, and how far it can be read after a crash.

A segment begins with MAGIC, length and checksum of a JSON table (run, versions), and that table. An act is MARK, its
kind, the lengths of head and body, how far the segment was known to be on the disk when it was written, a checksum, the
head as JSON and the body. The checksum starts from a secret number of the segment, so that nobody can put an act into a
body. What follows the last act is zeros: space that was allocated ahead.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any
from zlib import crc32

from fedasmu.errors import UserError

MAGIC = b"FASLOG1\n"
MARK = b"\xfaACT"
FIELDS = struct.Struct("<4sBIIQ")  # mark, kind, head, body, durable
CHECK = struct.Struct("<I")
OPENING = struct.Struct("<II")  # length, checksum
PREFIX = FIELDS.size + CHECK.size
KINDS = ("begin", "seat", "start", "fetch", "upload", "lose", "skip", "flush", "sending")
LONGEST_HEAD = 1 << 20


class Damaged(UserError):
    """What was once safely on the disk cannot be read any more. The message says where."""


@dataclass(frozen=True, slots=True)
class Act:
    """A call made to the server."""

    kind: str
    head: dict[str, Any]
    body: bytes = b""


def opening(table: dict[str, Any]) -> bytes:
    text = json.dumps(table).encode()
    return MAGIC + OPENING.pack(len(text), crc32(text)) + text


def packed(act: Act, durable: int, salt: int) -> list[bytes]:
    head = json.dumps(act.head, separators=(",", ":")).encode()
    fields = FIELDS.pack(MARK, KINDS.index(act.kind), len(head), len(act.body), durable)
    check = crc32(act.body, crc32(head, crc32(fields, salt)))
    return [fields, CHECK.pack(check), head, act.body]


@dataclass(frozen=True, slots=True)
class Contents:
    table: dict[str, Any]
    acts: Sequence[tuple[int, int]]  # where each act begins, and how long it is
    end: int  # of the last act


class Segment:
    """A file of acts, read back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = _mapped(path)
        table, start = self._opening()
        self.salt = int(table["salt"])
        acts, position = [], start
        while (length := self._length(position)) is not None:
            acts.append((position, length))
            position += length
        rest = self.data[position:]
        if rest != bytes(len(rest)) and (later := self._survivor(position)) is not None:
            raise Damaged(
                f"{path}: damaged at byte {position}: what stood there was on the disk when the act at byte {later} "
                "was written; bring this file back from a backup, or start the run again"
            )
        self.contents = Contents(table, acts, position)

    def acts(self, first: int = 0, only: str | None = None) -> Iterator[tuple[int, Act]]:
        """Each with its place in the file's order: all of them from the first on, or those of one kind."""
        for number, (position, _) in enumerate(self.contents.acts[first:], first):
            if only is None or self.data[position + len(MARK)] == KINDS.index(only):
                yield number, self._act(position)

    def _opening(self) -> tuple[dict[str, Any], int]:
        place = len(MAGIC) + OPENING.size
        if len(self.data) >= place and self.data[: len(MAGIC)] == MAGIC:
            length, check = OPENING.unpack(self.data[len(MAGIC) : place])
            text = self.data[place : place + length]
            if crc32(text) == check and len(text) == length:
                return json.loads(text), place + length
        raise Damaged(f"{self.path}: damaged at its beginning")

    def _length(self, position: int) -> int | None:
        """How long the act at this place is, head and all; None where there is no sound one."""
        fields = self.data[position : position + FIELDS.size]
        if len(fields) < FIELDS.size or not fields.startswith(MARK):
            return None
        _, kind, head, body, _ = FIELDS.unpack(fields)
        start = position + PREFIX
        if kind >= len(KINDS) or head > LONGEST_HEAD or start + head + body > len(self.data):
            return None
        (check,) = CHECK.unpack(self.data[position + FIELDS.size : start])
        view = memoryview(self.data)
        found = crc32(view[start : start + head + body], crc32(fields, self.salt))
        return PREFIX + head + body if found == check else None

    def _act(self, position: int) -> Act:
        _, kind, head, body, _ = FIELDS.unpack(self.data[position : position + FIELDS.size])
        start = position + PREFIX
        text = self.data[start : start + head]
        return Act(KINDS[kind], json.loads(text), self.data[start + head : start + head + body])

    def _survivor(self, position: int) -> int | None:
        """A sound act further on that knew this place to be on the disk: then what is wrong there is no torn write."""
        place = self.data.find(MARK, position + 1)
        while place >= 0:
            if self._length(place) is not None:
                durable = FIELDS.unpack(self.data[place : place + FIELDS.size])[4]
                if durable > position:
                    return place
            place = self.data.find(MARK, place + 1)
        return None


def _mapped(path: Path) -> bytes | mmap:
    """The file's bytes. They are read where one looks at them, and take no memory of their own."""
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
