"""Seats and invites: one seat a key, for ever; an invite is used as often as it may be, and no more."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedasmu.errors import UserError
from fedasmu.network.register import Refused, Register

PIN = bytes(32)


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    opened = Register(tmp_path / "register.db", seats=3)
    yield opened
    opened.close()


def key(number: int) -> bytes:
    return bytes([number]) * 32


def test_seats_are_given_in_order_and_the_same_key_gets_its_own_again(register: Register) -> None:
    invite = register.invite(PIN, uses=2).id
    assert [register.enrol(invite, key(n), f"pi-{n}", 10 + n).seat for n in (1, 2)] == [0, 1]
    again = register.enrol(invite, key(1), "another-name", 99)
    assert (again.seat, again.name, again.examples) == (0, "pi-1", 11)
    assert register.invites() == []


def test_the_secret_of_an_invite_is_kept_nowhere(register: Register, tmp_path: Path) -> None:
    invite = register.invite(PIN)
    register.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert invite.key.public in stored
    assert invite.seed not in stored
    register.__init__(tmp_path / "register.db", 3)  # type: ignore[misc]
    assert (tmp_path / "register.db").stat().st_mode & 0o777 == 0o600


def test_an_invite_may_name_the_device_and_its_seat(register: Register) -> None:
    invite = register.invite(PIN, name="kitchen-pi", seat=2)
    seat = register.enrol(invite.id, key(1), "whatever", 5)
    assert (seat.seat, seat.name) == (2, "kitchen-pi")


def test_a_gap_between_seats_is_filled_and_no_seat_is_beyond_the_last(register: Register) -> None:
    register.enrol(register.invite(PIN, seat=2).id, key(1), "last", 1)
    invite = register.invite(PIN, uses=9).id
    assert [register.enrol(invite, key(number), f"d{number}", 1).seat for number in (2, 3)] == [0, 1]
    for seat in (None, 3):
        with pytest.raises(Refused, match="all 3 seats"):
            register.enrol(register.invite(PIN, seat=seat).id, key(4), "d4", 1)


@pytest.mark.parametrize(
    ("code", "options", "name"),
    [
        ("invite-used", {"uses": 0}, "a"),
        ("invite-expired", {"hours": -1.0}, "a"),
        ("taken", {}, "first"),
        ("name", {}, "../../etc"),
        ("name", {}, "Upper"),
        ("name", {}, ""),
        ("name", {}, "a" * 65),
        ("name", {}, "a\n"),
        ("no-seat", {"seat": 0}, "b"),
    ],
)
def test_what_cannot_be_is_refused_in_words(register: Register, code: str, options: dict, name: str) -> None:  # type: ignore[type-arg]
    register.enrol(register.invite(PIN).id, key(1), "first", 1)
    with pytest.raises(Refused) as caught:
        register.enrol(register.invite(PIN, **options).id, key(2), name, 1)
    assert caught.value.code == code
    assert len(register.all()) == 1


def test_a_full_register_and_a_foreign_invite_are_refused(register: Register) -> None:
    invite = register.invite(PIN, uses=9).id
    for number in range(3):
        register.enrol(invite, key(number), f"d{number}", 1)
    with pytest.raises(Refused, match="all 3 seats"):
        register.enrol(invite, key(7), "d7", 1)
    with pytest.raises(Refused, match="not of this run"):
        register.enrol("nobody", key(7), "d7", 1)


def test_a_revoked_key_stays_refused(register: Register) -> None:
    invite = register.invite(PIN, uses=2).id
    register.enrol(invite, key(1), "first", 1)
    revoked = register.revoke("first")
    assert revoked is not None
    assert revoked.revoked is not None
    with pytest.raises(Refused, match="revoked"):
        register.enrol(invite, key(1), "first", 1)
    assert register.revoke("nobody") is None


def test_a_new_key_takes_the_seat_over(register: Register) -> None:
    seat = register.enrol(register.invite(PIN).id, key(1), "first", 1)
    for _ in range(2):  # the answer to the first may be lost
        assert register.rekey(key(1), key(2)) == replace(seat, key=key(2))
    assert [one.key for one in register.all()] == [key(2)]
    assert register.keys(seat.seat) == {key(1), key(2)}
    with pytest.raises(Refused, match="no seat"):
        register.rekey(key(1), key(3))
    register.revoke("first")
    with pytest.raises(Refused, match="revoked"):
        register.rekey(key(2), key(3))


def test_another_process_is_noticed(register: Register, tmp_path: Path) -> None:
    before = register.changes
    other = Register(tmp_path / "register.db", seats=3)
    other.invite(PIN)
    other.close()
    assert register.changes != before


def test_an_invite_for_one_is_used_once_however_many_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "register.db"
    first = Register(path, seats=50)
    invite = first.invite(PIN).id
    outcomes: list[str] = []

    def come(number: int) -> None:
        mine = Register(path, seats=50)
        try:
            mine.enrol(invite, key(number), f"d{number}", 1)
            outcomes.append("in")
        except Refused as refused:
            outcomes.append(refused.code)
        finally:
            mine.close()

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["in"] + ["invite-used"] * 7
    assert abs(first.all()[0].enrolled - time.time()) < 3600
    first.close()


def test_a_new_register_waits_for_another_process_that_is_about_to_write(tmp_path: Path) -> None:
    """As when `fedasmu keys` looks at a run that begins."""
    other = sqlite3.connect(tmp_path / "register.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    leaving = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    leaving.start()
    Register(tmp_path / "register.db", 3).close()
    leaving.join()
    other.close()


def test_a_register_without_room_keeps_what_it_has_and_goes_on(register: Register, tmp_path: Path) -> None:
    """The commit fails: what was begun is undone, and nobody else is locked out."""
    invite = register.invite(PIN, uses=9).id
    log = tmp_path / "register.db-wal"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, limits[1]))
    try:
        with pytest.raises(OSError, match=r"Input/output error: .*register\.db"):
            register.enrol(invite, key(1), "one", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert register.all() == []
    other = Register(tmp_path / "register.db", 3)
    other.invite(PIN)
    other.close()
    assert register.enrol(invite, key(1), "one", 5).seat == 0


def test_a_full_disk_is_called_by_its_name(register: Register) -> None:
    pages = register._database.execute("PRAGMA page_count").fetchone()[0]
    register._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=r"No space left on device: .*register\.db"):
        any(register.invite(PIN) is None for _ in range(1000))


def test_a_register_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "register.db").write_bytes(b"hello" * 100)
    with pytest.raises(UserError, match=r"register\.db: cannot be used: file is not a database"):
        Register(tmp_path / "register.db", 3)
