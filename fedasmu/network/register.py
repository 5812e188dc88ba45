"""Who may come: seats and invites, in one SQLite file that the server and `fedasmu keys` both open.

A seat is a place in the federation for ever: its number is the device's number, and it belongs to one public key.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedasmu.errors import UserError
from fedasmu.network.keys import Invite

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
PATIENCE = 10.0  # seconds that one process waits for the other
SYSTEM = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
}
TABLES = """
CREATE TABLE IF NOT EXISTS seats (
  seat INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, key BLOB UNIQUE NOT NULL,
  examples INTEGER NOT NULL, enrolled REAL NOT NULL, revoked REAL);
CREATE TABLE IF NOT EXISTS former (key BLOB NOT NULL, seat INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS invites (
  id TEXT PRIMARY KEY, key BLOB NOT NULL, name TEXT, seat INTEGER, uses INTEGER NOT NULL, expires REAL NOT NULL);
"""


class Refused(Exception):
    """An enrolment cannot be. `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Seat:
    seat: int
    name: str
    key: bytes
    examples: int
    enrolled: float  # wall-clock time, for people
    revoked: float | None


@dataclass(frozen=True, slots=True)
class Open:
    """An invite that is not used up."""

    id: str
    key: bytes
    name: str | None
    seat: int | None
    uses: int
    expires: float


class Register:
    def __init__(self, path: Path, seats: int) -> None:
        self.seats = seats
        self._path = path
        with self._asking():
            self._database = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
            path.chmod(0o600)
            self._share()
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(TABLES)

    def close(self) -> None:
        self._database.close()

    def _share(self) -> None:
        """Readers and a writer at once. Two processes that ask for it at the same moment get in each other's way."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:  # at once: SQLite does not wait here
                if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def copy(self, path: Path) -> None:
        """All seats and invites into a new file, for a run that begins with them."""
        with self._asking(), closing(sqlite3.connect(path)) as other:
            path.chmod(0o600)
            self._database.backup(other)

    @property
    def changes(self) -> int:
        """Another number whenever another process has written."""
        return int(self._execute("PRAGMA data_version").fetchone()[0])

    def invite(
        self, pin: bytes, *, name: str | None = None, seat: int | None = None, uses: int = 1, hours: float = 24.0
    ) -> Invite:
        """A new one. Its secret is in what is returned, and nowhere else."""
        invite = Invite.new(pin)
        row = (invite.id, invite.key.public, name, seat, uses, time.time() + 3600 * hours)
        self._execute("INSERT INTO invites VALUES (?, ?, ?, ?, ?, ?)", row)
        return invite

    def find_invite(self, name: str) -> Open | None:
        row = self._execute("SELECT * FROM invites WHERE id = ?", (name,)).fetchone()
        return None if row is None else Open(*row)

    def enrol(self, invite: str, key: bytes, name: str, examples: int) -> Seat:
        """Give this key a seat, and use the invite once. The same key gets its seat again and uses nothing."""
        with self._exclusively():
            if (seat := self._seat("key", key)) is not None:
                if seat.revoked is not None:
                    raise Refused("revoked", f"the key of device {seat.name!r} was revoked; join with a new key")
                return seat
            opened = self._usable(invite)
            name = opened.name or name
            number = self._free(opened, name)
            row = (number, name, key, examples, time.time(), None)
            self._execute("INSERT INTO seats VALUES (?, ?, ?, ?, ?, ?)", row)
            self._execute("UPDATE invites SET uses = uses - 1 WHERE id = ?", (invite,))
            return Seat(*row)

    def update(self, seat: int, examples: int) -> None:
        self._execute("UPDATE seats SET examples = ? WHERE seat = ?", (examples, seat))

    def rekey(self, old: bytes, new: bytes) -> Seat:
        """Give the seat of one key to another. Asked again, when that was done, it changes nothing."""
        with self._exclusively():
            seat = self._seat("key", new) or self._seat("key", old)
            if seat is None:
                raise Refused("unknown", "this device has no seat in this run; join with an invite")
            if seat.revoked is not None:
                raise Refused("revoked", f"the key of device {seat.name!r} was revoked; ask who runs the server")
            if seat.key != new:
                self._execute("UPDATE seats SET key = ? WHERE seat = ?", (new, seat.seat))
                self._execute("INSERT INTO former VALUES (?, ?)", (old, seat.seat))
            return replace(seat, key=new)

    def keys(self, seat: int) -> set[bytes]:
        """All that this seat has had."""
        question = "SELECT key FROM former WHERE seat = ? UNION SELECT key FROM seats WHERE seat = ?"
        return {key for (key,) in self._execute(question, (seat, seat))}

    def revoke(self, name: str) -> Seat | None:
        """Refuse this device's key from now on. None if there is no such device."""
        self._execute("UPDATE seats SET revoked = ? WHERE name = ? AND revoked IS NULL", (time.time(), name))
        return self._seat("name", name)

    def all(self) -> list[Seat]:
        return [Seat(*row) for row in self._execute("SELECT * FROM seats ORDER BY seat")]

    def invites(self) -> list[Open]:
        return [Open(*row) for row in self._execute("SELECT * FROM invites WHERE uses > 0 ORDER BY expires")]

    def _usable(self, invite: str) -> Open:
        opened = self.find_invite(invite)
        if opened is None:
            raise Refused("invite-unknown", "this invite is not of this run; ask for a new one")
        if opened.uses < 1:
            raise Refused("invite-used", "this invite was used already; ask for a new one")
        if opened.expires < time.time():
            raise Refused("invite-expired", "this invite has expired; ask for a new one")
        return opened

    def _free(self, opened: Open, name: str) -> int:
        if not NAME.fullmatch(name):
            raise Refused("name", f"a device's name has a-z, 0-9, - and _, at most 64 of them; not {name[:80]!r}")
        if self._seat("name", name) is not None:
            raise Refused("taken", f"there is a device named {name!r} already; choose another with --name")
        free = self._lowest() if opened.seat is None else opened.seat
        if free >= self.seats or (opened.seat is not None and self._seat("seat", free) is not None):
            raise Refused("no-seat", f"all {self.seats} seats of this run are taken; fleet.devices has their number")
        return free

    def _seat(self, column: Literal["seat", "name", "key"], value: object) -> Seat | None:
        row = self._execute(f"SELECT * FROM seats WHERE {column} = ?", (value,)).fetchone()
        return None if row is None else Seat(*row)

    def _lowest(self) -> int:
        """The first seat that nobody has. There may be a hundred thousand, mostly without a gap."""
        count, highest = self._execute("SELECT count(*), coalesce(max(seat), -1) FROM seats").fetchone()
        if highest == count - 1:
            return int(count)
        nexts = "SELECT 0 AS seat UNION SELECT seat + 1 FROM seats"
        gap = f"SELECT min(seat) FROM ({nexts}) WHERE seat NOT IN (SELECT seat FROM seats)"
        return int(self._execute(gap).fetchone()[0])

    def _execute(self, question: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        with self._asking():
            return self._database.execute(question, values)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Both processes may write: one after the other, and all or nothing."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # where the disk is full SQLite may have ended it
                self._execute("ROLLBACK")
            raise

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """What SQLite cannot do is the system's word, as with any other file; what it cannot read is damaged."""
        try:
            yield
        except sqlite3.Error as error:
            for code, number in SYSTEM.items():
                if _is(error, code):
                    raise OSError(number, os.strerror(number), str(self._path)) from error
            raise UserError(f"{self._path}: cannot be used: {error}") from error


def _is(error: sqlite3.Error, code: int) -> bool:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == code
