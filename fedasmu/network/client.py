"""A device's side of the wire: pins the server's certificate, signs every request, tries again until it is heard."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from urllib3.exceptions import HTTPError

import fedasmu
from fedasmu.errors import UserError
from fedasmu.network import wire
from fedasmu.network.bounds import LARGE
from fedasmu.network.connection import Connection, Cut, Ended, Heard, Reply, checked_name, reason
from fedasmu.network.download import Download
from fedasmu.network.keys import (
    Invite,
    Key,
    content_digest,
    decoded,
    encoded,
    enrol_text,
    hello_text,
    rekey_text,
    request_text,
)

FIRST, LONGEST = 1.0, 60.0  # seconds between two attempts: drawn from 0 up to these
SMALL = 1 << 20  # bytes of a reply that holds no model


class Stopped(Exception):
    """The device was asked to stop while it waited."""


class Client:
    def __init__(
        self,
        url: str,
        key: Key,
        pins: Sequence[bytes],
        *,
        stopping: threading.Event | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._connection = Connection(url, pins)
        self.url, self.key, self.say = self._connection.url, key, say
        self.stopping = threading.Event() if stopping is None else stopping
        self.largest = SMALL  # bytes of a reply
        self.patience = math.inf  # seconds without an answer before it is given up
        self.run = self.visit = ""
        self.device = -1
        self._sequence = 0
        self._lock = threading.Lock()
        self._random = random.SystemRandom()

    @property
    def pins(self) -> list[bytes]:
        """Of the server's certificate, and of the one that will follow it."""
        return self._connection.pins

    def enrol(self, invite: Invite, name: str, examples: int) -> dict[str, Any]:
        """Take a seat. The same key gets the same seat again."""

        def request(run: str, challenge: str) -> dict[str, Any]:
            text = enrol_text(run, challenge, self.key.public, name, examples)
            signed = {"signature": encoded(invite.key.sign(text)), "proof": encoded(self.key.sign(text))}
            return {"invite": invite.id, "name": name, "examples": examples, **signed}

        return self._challenged("/v1/enrol", request)[1]

    def rekey(self, new: Key) -> None:
        """Give this device's seat to a new key, and speak with that from now on."""

        def request(run: str, challenge: str) -> dict[str, Any]:
            text = rekey_text(run, challenge, self.key.public, new.public)
            signed = {"signature": encoded(self.key.sign(text)), "proof": encoded(new.sign(text))}
            return {"new": encoded(new.public), **signed}

        self._challenged("/v1/key", request)
        self.key = new

    def hello(self, examples: int) -> dict[str, Any]:
        """Open a visit; the server's settings for devices."""

        def request(run: str, challenge: str) -> dict[str, Any]:
            signature = encoded(self.key.sign(hello_text(run, challenge, self.key.public)))
            versions = {"wire": wire.VERSION, "fedasmu": fedasmu.__version__}
            return {"signature": signature, "examples": examples, **versions}

        run, welcome = self._challenged("/v1/hello", request)
        try:
            self.run, self.device, self.visit = run, int(welcome["device"]), checked_name(welcome["visit"])
            self._connection.pins = [decoded(pin, 32) for pin in welcome["pins"]] or self.pins
        except (KeyError, ValueError, TypeError, OverflowError):
            raise Ended("wire", f"{self.url} speaks another language: is it a fedasmu server?") from None
        return welcome

    def request(self, method: str, target: str, body: bytes = b"", *, wait: float = 0.0) -> Reply:
        """A signed request, made until there is an answer. 401 is left to the caller: a new hello is due."""
        return self._insist(lambda: self._signed(method, target, body, wait))

    def download(self, method: str, target: str, *, wait: float = 0.0, heard: Heard | None = None) -> Reply:
        """The same for a reply with a model. `heard` is shown the bytes as they come."""
        download = Download()

        def attempt() -> Reply:
            try:
                if (rest := download.rest) is not None:
                    reply = self._signed("GET", rest[0], b"", 0.0, more=rest[1])
                    if (settled := download.settled(reply)) is not None:
                        return settled
                return self._signed(method, target, b"", wait, heard)
            except Cut as cut:
                download.keep(cut)
                raise

        return self._insist(attempt)

    def upload(self, target: str, body: bytes, told: Mapping[str, str] | None = None) -> Reply:
        """The same for a report. Where it is large, the server is asked what it has, and is sent the rest.

        What is told beside it is not signed: nobody vouches for it.
        """
        digest, asking = content_digest(body), len(body) > LARGE

        def attempt() -> Reply:
            nonlocal asking
            held, asks, asking = 0, asking, True  # also of a short one that was refused while it was being sent
            if asks:
                known = self._signed("GET", target, b"", 0.0, digest=digest)
                found = known.table.get("held")
                if known.status != HTTPStatus.OK or found is None:  # settled before, or there is something to do first
                    return known
                held = found if isinstance(found, int) and 0 < found < len(body) else 0
            more = {"Upload-Offset": str(held), **(told or {})}
            return self._signed("PUT", target, body[held:], 0.0, more=more, digest=digest)

        return self._insist(attempt)

    def once(self, method: str, target: str, body: bytes = b"") -> Reply | None:
        """The same, tried a single time; None where nothing was heard, or only from a stranger."""
        try:
            return self._signed(method, target, body, 0.0)
        except (HTTPError, Ended):
            return None

    def close(self) -> None:
        self._connection.close()

    def _signed(
        self,
        method: str,
        target: str,
        body: bytes,
        wait: float,
        heard: Heard | None = None,
        more: Mapping[str, str] | None = None,
        digest: str = "",
    ) -> Reply:
        """Once. The digest is that of the body, unless this is only a part of what is meant."""
        digest = digest or content_digest(body)
        with self._lock:
            sequence, self._sequence = self._sequence, self._sequence + 1
        text = request_text(self.run, method, target, self.device, self.visit, sequence, digest)
        headers = {
            "Fedasmu-Device": str(self.device),
            "Fedasmu-Visit": self.visit,
            "Fedasmu-Sequence": str(sequence),
            "Fedasmu-Signature": encoded(self.key.sign(text)),
            "Content-Digest": digest,
            **(more or {}),
        }
        return self._connection.once(method, target, body, headers, wait=wait, largest=self.largest, heard=heard)

    def _challenged(self, target: str, request: Callable[[str, str], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        """The run, and the answer to a request that signs a challenge.

        A challenge is good once: every attempt asks for a new one, whatever has become of the one before.
        """
        run = ""

        def attempt() -> Reply:
            nonlocal run
            asked = self._plain("GET", "/v1/hello", b"")
            if asked.status >= HTTPStatus.BAD_REQUEST:
                return asked
            greeting = self._greeting(asked)
            run, challenge = greeting["run"], greeting["challenge"]
            table = {"key": encoded(self.key.public), "challenge": challenge, **request(run, challenge)}
            return self._plain("POST", target, json.dumps(table).encode())

        for last in (False, False, True):
            reply = self._insist(attempt)
            if reply.status < HTTPStatus.BAD_REQUEST:
                return run, reply.table
            code, say = reply.table.get("error", reply.status), reply.table.get("say", f"{self.url}: {reply.status}")
            if last or code != "credentials":  # or the server was started again between the two
                raise Ended(str(code), str(say))
        raise AssertionError("the last try answers or raises")

    def _greeting(self, reply: Reply) -> dict[str, Any]:
        greeting = reply.table
        try:
            checked_name(greeting["run"]), checked_name(greeting["challenge"])
            known = wire.VERSION in greeting.get("wire", [])
        except (KeyError, ValueError, TypeError):
            raise Ended("wire", f"{self.url} does not answer as a fedasmu server does") from None
        if not known:
            raise Ended(
                "wire",
                f"{self.url} runs fedasmu {greeting.get('fedasmu')} (wire {greeting.get('wire')}), this is fedasmu "
                f"{fedasmu.__version__} (wire [{wire.VERSION}]): install the same version on both sides",
            )
        return greeting

    def _plain(self, method: str, target: str, body: bytes) -> Reply:
        """Once, and not signed."""
        headers = {"Content-Type": "application/json"}
        return self._connection.once(method, target, body, headers, largest=self.largest)

    def _insist(self, attempt: Callable[[], Reply]) -> Reply:
        """Until there is an answer, with pauses drawn from a growing range, so that a fleet does not come at once."""
        longest, told, until = FIRST, False, time.monotonic() + self.patience
        while True:
            try:
                reply = attempt()
                if reply.is_answer:
                    return reply
                trouble, pause = str(reply.table.get("say", f"status {reply.status}")), reply.pause
            except HTTPError as error:
                trouble, pause = reason(error), 0.0
                longest = FIRST if isinstance(error, Cut) and error.body else longest  # it does go on
            if time.monotonic() > until:
                raise UserError(f"{self.url}: {trouble}; is the server running, and is this its address?")
            if not told:
                self.say(f"{self.url}: {trouble}; trying again until it answers")
                told = True
            if self.stopping.wait(pause + self._random.uniform(0.0, longest)):
                raise Stopped
            longest = min(LONGEST, 2 * longest)
