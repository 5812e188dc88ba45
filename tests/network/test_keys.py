"""Keys, invites, certificates and visits: what is signed cannot be moved, and what was used cannot be used again."""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedasmu.errors import UserError
from fedasmu.network import certificate, keys
from fedasmu.network.keys import Invite, Key
from fedasmu.network.visits import SECONDS, WIDTH, Challenges, Visits, Window

PIN = bytes(range(32))


def test_an_invite_is_read_as_it_was_printed() -> None:
    invite = Invite.new(PIN)
    assert Invite.read(f"  {invite}\n") == invite
    assert str(invite).startswith("fa1.")
    assert Invite.new(PIN).seed != invite.seed


@pytest.mark.parametrize("change", ["", "fa1", "fa2{}", "{}x", "{}.a", "fa1.a.b.c", "fa1.../../x.AA.AA"])
def test_what_is_no_invite_is_said_to_be_none(change: str) -> None:
    text = change.format(str(Invite.new(PIN))[3:])
    with pytest.raises(UserError, match="not an invite") as caught:
        Invite.read(text)
    assert len(text) < 9 or text not in str(caught.value), "it may hold most of a secret"


def test_a_key_stays_the_same_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = Key.at(path)
    assert Key.at(path).public == key.public
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(UserError, match="not a key"):
        Key.at(path)


TEXT = ("r1", "PUT", "/v1/tasks/5/result", 3, "visit", 7, keys.content_digest(b"body"))


def test_a_signature_is_good_for_its_text_and_key(tmp_path: Path) -> None:
    key = Key.at(tmp_path / "key")
    text = keys.request_text(*TEXT)
    signature = key.sign(text)
    assert keys.verified(key.public, signature, text)
    assert not keys.verified(Key.at(tmp_path / "other").public, signature, text)
    assert not keys.verified(key.public, signature[:-1] + bytes([signature[-1] ^ 1]), text)
    for wrong in (b"", b"x", bytes(64), signature * 2):
        assert not keys.verified(key.public, wrong, text)
    assert not keys.verified(b"no key", signature, text)


@pytest.mark.parametrize("place", range(7))
def test_a_signature_cannot_be_moved(tmp_path: Path, place: int) -> None:
    """To another run, method, path, device, visit, sequence number or body."""
    key = Key.at(tmp_path / "key")
    signature = key.sign(keys.request_text(*TEXT))
    other: list[Any] = list(TEXT)
    other[place] = other[place] + 1 if isinstance(other[place], int) else f"{other[place]}x"
    assert not keys.verified(key.public, signature, keys.request_text(*other))


def test_the_three_texts_differ_from_each_other() -> None:
    assert keys.hello_text("r", "c", PIN) != keys.enrol_text("r", "c", PIN, "", 0)
    assert keys.enrol_text("r", "c", PIN, "a", 1) != keys.enrol_text("r", "c", PIN, "a", 2)


def test_the_digest_is_that_of_rfc_9530() -> None:
    expected = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"  # of its appendix
    assert keys.content_digest(b'{"hello": "world"}') == expected


def test_the_certificate_is_the_owners_and_its_pin_is_what_a_handshake_shows(tmp_path: Path) -> None:
    pin = certificate.make(tmp_path / "keys", "current", ["127.0.0.1", "::1", "localhost"])
    folder = tmp_path / "keys"
    assert certificate.pins(folder) == [pin]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "current.key").stat().st_mode & 0o777 == 0o600
    context = certificate.server_context(folder / "current.pem", folder / "current.key")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_the_next_certificate_is_announced_and_then_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keys rotate"):
        certificate.switch(tmp_path)
    first = certificate.make(tmp_path, certificate.CURRENT, ["localhost"])
    second = certificate.make(tmp_path, certificate.NEXT, ["localhost"])
    assert certificate.pins(tmp_path) == [first, second]
    certificate.switch(tmp_path)
    assert certificate.pins(tmp_path) == [second]
    third = certificate.make(tmp_path, certificate.NEXT, ["localhost"])
    (tmp_path / f"{certificate.NEXT}.key").replace(tmp_path / f"{certificate.CURRENT}.key")  # and then it was killed
    certificate.switch(tmp_path)
    assert certificate.pins(tmp_path) == [third]
    certificate.server_context(tmp_path / "current.pem", tmp_path / "current.key")


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("hello")
    with pytest.raises(UserError, match=r"a\.pem: the certificate cannot be read"):
        certificate.pin(tmp_path / "a.pem")
    with pytest.raises(UserError, match="cannot be used for TLS"):
        certificate.server_context(tmp_path / "a.pem", tmp_path / "a.pem")


def test_a_challenge_is_good_once_and_for_a_minute() -> None:
    challenges = Challenges()
    first, second = challenges.new(10.0), challenges.new(10.0)
    assert first != second
    assert challenges.spend(first, 10.5)
    assert not challenges.spend(first, 10.6)
    assert not challenges.spend(second, 10.0 + SECONDS + 0.01)
    assert not Challenges().spend(second, 11.0), "another server's"
    for wrong in ("", ".", "x", "\u00e4.b", first + "x", "9999999-" + "0" * 32 + ".AAAA"):
        assert not challenges.spend(wrong, 11.0)


def test_used_challenges_do_not_pile_up() -> None:
    challenges = Challenges()
    for second in range(1000):
        assert challenges.spend(challenges.new(float(second)), float(second))
    assert len(challenges._used) <= SECONDS + 2


@given(st.lists(st.integers(-3, 200), max_size=300))
def test_every_sequence_number_is_good_once_and_old_ones_never(numbers: list[int]) -> None:
    window, seen, highest = Window(), set[int](), -1
    for number in numbers:
        expected = number >= 0 and number not in seen and number > highest - WIDTH
        assert window.accept(number) == expected
        if expected:
            seen.add(number)
            highest = max(highest, number)


def test_the_newest_visit_of_a_device_ends_the_one_before() -> None:
    visits = Visits()
    first = visits.open(3, PIN)
    assert visits.find(3, first) is not None
    second = visits.open(3, PIN)
    assert visits.find(3, first) is None
    assert visits.find(3, second) is not None
    assert visits.find(4, second) is None
    assert visits.find(3, "\u00e4") is None
    visits.close(3)
    assert visits.find(3, second) is None


def no_room(file: int, mode: str) -> Any:
    os.close(file)
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_key_or_a_certificate_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power goes, or the disk is full, when there is a file for it and nothing in it yet."""
    certificate.make(tmp_path, certificate.CURRENT, ["localhost"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", no_room)
        with pytest.raises(OSError, match="No space"):
            Key.at(tmp_path / "key")
        patch.setattr(os, "fdopen", Mock(side_effect=[(tmp_path / "other").open("wb"), OSError("No space")]))
        with pytest.raises(OSError, match="No space"):
            certificate.make(tmp_path, certificate.NEXT, ["localhost"])
    assert len(certificate.pins(tmp_path)) == 1, "devices go on being told of the current one"
    assert Key.at(tmp_path / "key").public == Key.at(tmp_path / "key").public
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
