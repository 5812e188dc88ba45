"""Who comes in: greetings, enrolment, visits, and the signature on every request. Nothing here touches the server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

import fedasmu
from fedasmu.network import wire
from fedasmu.network.deadline import DEVICE
from fedasmu.network.keys import content_digest, decoded, enrol_text, hello_text, rekey_text, request_text, verified
from fedasmu.network.listener import Buckets
from fedasmu.network.register import Refused, Register, Seat
from fedasmu.network.visits import Challenges, Visits

DIGEST = re.compile(r"sha-256=:[A-Za-z0-9+/]{43}=:")
TABLE = 4096  # bytes of a greeting or an enrolment


class Problem(Exception):
    """A request that cannot be served: status and code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, say: str, pause: int = 0) -> None:
        super().__init__(say)
        self.status, self.code, self.pause = status, code, pause


@dataclass(frozen=True, slots=True)
class Signed:
    """A request whose signature is good."""

    device: int
    digest: str
    proof: dict[str, Any]  # what the ledger keeps of it


class Door:
    def __init__(self, run: str, register: Register, clock: Callable[[], float], max_examples: int) -> None:
        self.run, self.register, self.clock, self.max_examples = run, register, clock, max_examples
        self.challenges, self.visits = Challenges(), Visits()
        self.buckets = Buckets()
        self.seats: dict[bytes, Seat] = {}
        self._changes = -1
        self.reload()

    def reload(self) -> set[int]:
        """Look whether `fedasmu keys` has changed anything: the devices that may not come any more."""
        if (changes := self.register.changes) == self._changes:
            return set()
        self._changes = changes
        return self._read()

    def greeting(self, address: str) -> dict[str, Any]:
        self._limit("hello", address, rate=10.0, burst=2000.0 if address == "127.0.0.1" else 100.0)
        challenge = self.challenges.new(self.clock())
        return {"challenge": challenge, "run": self.run, "wire": [wire.VERSION], "fedasmu": fedasmu.__version__}

    def enrol(self, table: dict[str, Any]) -> Seat:
        """A new device, with an invite: both its key and the invite's have signed."""
        public, name, examples = _bytes(table, "key", 32), _text(table, "name"), self._examples(table)
        text = enrol_text(self.run, _text(table, "challenge"), public, name, examples)
        invite = self.register.find_invite(_text(table, "invite"))
        if invite is None:
            raise Problem(403, "invite-unknown", "this invite is not of this run; ask for a new one")
        proofs = ((invite.key, _bytes(table, "signature", 64)), (public, _bytes(table, "proof", 64)))
        self._challenged(table, all(verified(key, signature, text) for key, signature in proofs))
        try:
            seat = self.register.enrol(invite.id, public, name, examples)
        except Refused as refused:
            status = 403 if refused.code.startswith("invite") or refused.code == "revoked" else 409
            raise Problem(status, refused.code, str(refused)) from None
        self.seats[seat.key] = seat
        return seat

    def rekey(self, table: dict[str, Any]) -> Seat:
        """A device's next key: both have signed."""
        old, new = _bytes(table, "key", 32), _bytes(table, "new", 32)
        text = rekey_text(self.run, _text(table, "challenge"), old, new)
        proofs = ((old, _bytes(table, "signature", 64)), (new, _bytes(table, "proof", 64)))
        self._challenged(table, all(verified(key, signature, text) for key, signature in proofs))
        try:
            seat = self.register.rekey(old, new)
        except Refused as refused:
            raise Problem(401, refused.code, str(refused)) from None
        self._read()
        self.visits.close(seat.seat)
        return seat

    def hello(self, table: dict[str, Any]) -> tuple[Seat, str, int]:
        """A visit begins: the seat, the visit's id and how many examples the device has."""
        public, examples = _bytes(table, "key", 32), self._examples(table)
        text = hello_text(self.run, _text(table, "challenge"), public)
        self._challenged(table, verified(public, _bytes(table, "signature", 64), text))
        seat = self.seats.get(public)
        if seat is None:
            raise Problem(401, "unknown", "this device has no seat in this run; join with an invite")
        if seat.revoked is not None:
            raise Problem(401, "revoked", f"the key of device {seat.name!r} was revoked; ask who runs the server")
        if table.get("wire") != wire.VERSION:
            raise Problem(
                409, "wire", f"the server runs fedasmu {fedasmu.__version__} (wire {wire.VERSION}): install the same"
            )
        return seat, self.visits.open(seat.seat, public), examples

    def recount(self, seat: Seat, examples: int) -> None:
        """A device came back with other data: the register, which people read, follows."""
        if seat.examples != examples:
            self.register.update(seat.seat, examples)
            self.seats[seat.key] = replace(seat, examples=examples)

    def sign_in(self, request: Request) -> Signed:
        """Whose request this is. Nothing of its body has been read: the signature covers the digest it declares."""
        headers = request.headers
        try:
            device, sequence = int(headers["fedasmu-device"]), int(headers["fedasmu-sequence"])
            visit = self.visits.find(device, headers["fedasmu-visit"])
            signature, digest = decoded(headers["fedasmu-signature"], 64), headers["content-digest"]
            if not DIGEST.fullmatch(digest):
                raise ValueError
        except (KeyError, ValueError):
            raise Problem(401, "credentials", "the request is not signed as it must be") from None
        if visit is None:
            raise Problem(401, "visit", "this visit is over: say hello again")
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        text = request_text(self.run, request.method, target, device, headers["fedasmu-visit"], sequence, digest)
        if not verified(visit.public, signature, text) or not visit.window.accept(sequence):
            raise Problem(401, "credentials", "the signature is wrong, or was used before")
        request.scope[DEVICE] = device
        self._limit("request", device, rate=20.0, burst=40.0)
        proof = {"visit": headers["fedasmu-visit"], "sequence": sequence, "signature": headers["fedasmu-signature"]}
        return Signed(device, digest, proof | {"digest": digest})

    def limit_enrolment(self, address: str) -> None:
        self._limit("enrol", address, rate=1.0, burst=1000.0 if address == "127.0.0.1" else 20.0)

    def _read(self) -> set[int]:
        seats = self.register.all()
        self.seats = {seat.key: seat for seat in seats}
        gone = {seat.seat for seat in seats if seat.revoked is not None}
        for device in gone:
            self.visits.close(device)
        return gone

    def _challenged(self, table: dict[str, Any], genuine: bool) -> None:
        if not genuine or not self.challenges.spend(_text(table, "challenge"), self.clock()):
            raise Problem(401, "credentials", "the signature or its challenge is not good; ask for a new challenge")

    def _examples(self, table: dict[str, Any]) -> int:
        examples = table.get("examples")
        if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= self.max_examples:
            raise Problem(422, "examples", f"examples must be a whole number from 1 to {self.max_examples}")
        return examples

    def _limit(self, what: str, who: object, rate: float, burst: float) -> None:
        if not self.buckets.take((what, who), rate, burst, self.clock()):
            raise Problem(429, "slow-down", "too many requests; come back a little later", pause=1)


async def body(request: Request, lengths: range, digest: str | None = None, data: bytearray | None = None) -> bytearray:
    """Exactly the bytes that were announced, after those that came before, if their number is one that can be."""
    data = bytearray() if data is None else data
    announced = request.headers.get("content-length")
    if announced is None or "transfer-encoding" in request.headers:
        raise Problem(411, "length", "a body needs its length in front")
    if not announced.isdecimal() or len(data) + int(announced) not in lengths:
        raise Problem(413, "length", f"a body must have {lengths.start} to {lengths.stop - 1} bytes here")
    async for chunk in request.stream():
        data += chunk
    if digest is not None and content_digest(data) != digest:
        raise Problem(400, "digest", "the body is not the one that was signed")
    return data


async def table(request: Request) -> dict[str, Any]:
    data = await body(request, range(2, TABLE + 1))
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Problem(400, "table", "the body is not a JSON table")
    return found


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or len(value) > 256 or not _is_whole(value):
        raise Problem(400, "table", f"{key} is missing, or is no short text")
    return value


def _is_whole(text: str) -> bool:
    """Whether there are letters behind all of it: JSON can name halves of them, which nothing can encode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _bytes(table: dict[str, Any], key: str, length: int) -> bytes:
    try:
        return decoded(_text(table, key), length)
    except ValueError:
        raise Problem(400, "table", f"{key} is not {length} bytes in base64") from None
