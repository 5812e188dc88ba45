"""What a device keeps on its disk: its key, the server's pins, what it remembers, and an upload not yet acknowledged.

A kill at any moment leaves either the old or the new of each. Memory and outbox belong to a run; the key stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedasmu.errors import Refused, UserError
from fedasmu.network import failpoint, vocabulary
from fedasmu.network.keys import Key, decoded, encoded
from fedasmu.protocol import Memory
from fedasmu.storage import checkpoint
from fedasmu.system.disk import write_whole


@dataclass(frozen=True, slots=True)
class Parcel:
    """A report that is to reach the server, and the memory that goes with it."""

    task: int
    frame: bytes
    memory: Memory


class Drawer:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock(folder / "lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"--state {folder}: another process is this device already") from None
        except OSError as error:
            raise UserError(f"--state {folder}: cannot be written: {error.strerror}") from None
        self.key = Key.at(folder / "key")
        self._run = folder

    def close(self) -> None:
        self._lock.release()

    @property
    def has_next_key(self) -> bool:
        """Whether a change of keys was begun, and the server's answer may be lost."""
        return (self.folder / "key.next").exists()

    def next_key(self) -> Key:
        return Key.at(self.folder / "key.next")

    def take_next_key(self) -> None:
        """The server knows it now: it is in the place of the old one."""
        (self.folder / "key.next").replace(self.folder / "key")
        self.key = Key.at(self.folder / "key")

    def pins(self) -> list[bytes]:
        try:
            return [decoded(pin, 32) for pin in json.loads((self.folder / "server.json").read_text())["pins"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def keep_pins(self, pins: list[bytes]) -> None:
        write_whole(self.folder / "server.json", json.dumps({"pins": [encoded(pin) for pin in pins]}))

    def enter(self, run: str) -> None:
        """From now on memory and outbox are those of this run. What earlier runs left is kept."""
        if not (run.isascii() and run.isalnum() and len(run) <= 64):
            raise UserError("the server's run has a name that cannot be")
        self._run = self.folder / "runs" / run

    def words(self, digest: str, ask: Callable[[], bytes]) -> list[str]:
        """The words with this digest: kept, or asked for once."""
        path = self.folder / f"vocabulary-{digest}.json"
        with suppress(OSError, ValueError):
            return vocabulary.read(path.read_bytes(), digest)
        data = ask()
        words = vocabulary.read(data, digest)
        write_whole(path, data.decode())
        return words

    def memory(self) -> Memory:
        """A copy that a session may change: it counts only once it is kept."""
        return checkpoint.load(self._run / "memory", self.say) or {}

    def parcel(self) -> Parcel | None:
        found: dict[str, Any] | None = checkpoint.load(self._run / "outbox", self.say)
        return None if found is None else Parcel(found["task"], found["frame"].numpy().tobytes(), found["memory"])

    def post(self, parcel: Parcel) -> None:
        """Keep what is about to be sent: a crash from now on sends the very same."""
        frame = torch.frombuffer(bytearray(parcel.frame), dtype=torch.uint8)
        with self._writing():
            checkpoint.save({"task": parcel.task, "frame": frame, "memory": parcel.memory}, self._run / "outbox")
        failpoint.reach("outbox.saved")

    def settle(self, parcel: Parcel, keep: bool) -> None:
        """The server has answered: what the task has taught is kept or not, and the parcel is done with."""
        failpoint.reach("outbox.sent")
        if keep and parcel.memory:
            with self._writing():
                checkpoint.save(parcel.memory, self._run / "memory")
            failpoint.reach("memory.saved")
        checkpoint.remove(self._run / "outbox")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refused(
                f"--state {self.folder}: cannot be written: {error.strerror}; when it can, start this device again: it "
                "goes on with the same task"
            ) from None
