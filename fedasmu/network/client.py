"""A device's side of the wire: pins the server's certificate, signs every request, tries again until it is heard."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ProtocolError, SSLError, TimeoutError
from urllib3.util import Timeout

import fedasmu
from fedasmu.errors import UserError
from fedasmu.network import wire
from fedasmu.network.keys import Invite, Key, content_digest, decoded, encoded, enrol_text, hello_text, request_text

PUBLIC = bytes(32)  # a pin of zeros: the certificate is one of a public authority
FIRST, LONGEST = 1.0, 60.0  # seconds between two attempts: drawn from 0 up to these
SMALL = 1 << 20  # bytes of a reply that holds no model
FINAL = {"revoked", "wire", "over", "invite-unknown", "invite-used", "invite-expired", "taken", "name", "no-seat"}


class Ended(UserError):
    """The server will not have this device, or has nothing for it any more: there is no point in trying again."""

    def __init__(self, code: str, say: str) -> None:
        super().__init__(say)
        self.code = code


class Stopped(Exception):
    """The device was asked to stop while it waited."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    pause: float = 0.0  # seconds, from Retry-After

    @property
    def table(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}


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
        self.url, self.key, self.pins, self.say = checked_url(url), key, list(pins), say
        self.stopping = threading.Event() if stopping is None else stopping
        self.largest = SMALL  # bytes of a reply
        self.patience = math.inf  # seconds without an answer before it is given up
        self.run = self.visit = ""
        self.device = -1
        self._sequence = 0
        self._lock = threading.Lock()
        self._random = random.SystemRandom()
        self._connect()

    def enrol(self, invite: Invite, name: str, examples: int) -> dict[str, Any]:
        """Take a seat. The same key gets the same seat again."""

        def request(run: str, challenge: str) -> dict[str, Any]:
            text = enrol_text(run, challenge, self.key.public, name, examples)
            signed = {"signature": encoded(invite.key.sign(text)), "proof": encoded(self.key.sign(text))}
            return {"invite": invite.id, "name": name, "examples": examples, **signed}

        return self._challenged("/v1/enrol", request)[1]

    def hello(self, examples: int) -> dict[str, Any]:
        """Open a visit; the server's settings for devices."""

        def request(run: str, challenge: str) -> dict[str, Any]:
            signature = encoded(self.key.sign(hello_text(run, challenge, self.key.public)))
            versions = {"wire": wire.VERSION, "fedasmu": fedasmu.__version__}
            return {"signature": signature, "examples": examples, **versions}

        run, welcome = self._challenged("/v1/hello", request)
        try:
            self.run, self.device, self.visit = run, int(welcome["device"]), str(welcome["visit"])
            self.pins = [decoded(pin, 32) for pin in welcome["pins"]] or self.pins
        except (KeyError, ValueError, TypeError):
            raise Ended("wire", f"{self.url} speaks another language: is it a fedasmu server?") from None
        return welcome

    def request(self, method: str, target: str, body: bytes = b"", *, wait: float = 0.0) -> Reply:
        """A signed request, made until there is an answer. 401 is left to the caller: a new hello is due."""
        return self._insist(lambda: self._signed(method, target, body, wait))

    def once(self, method: str, target: str, body: bytes = b"") -> Reply | None:
        """The same, tried a single time; None where nothing was heard."""
        try:
            return self._signed(method, target, body, 0.0)
        except HTTPError:
            return None

    def close(self) -> None:
        self._pool.clear()

    def _signed(self, method: str, target: str, body: bytes, wait: float) -> Reply:
        digest = content_digest(body)
        with self._lock:
            sequence, self._sequence = self._sequence, self._sequence + 1
        text = request_text(self.run, method, target, self.device, self.visit, sequence, digest)
        headers = {
            "Fedasmu-Device": str(self.device),
            "Fedasmu-Visit": self.visit,
            "Fedasmu-Sequence": str(sequence),
            "Fedasmu-Signature": encoded(self.key.sign(text)),
            "Content-Digest": digest,
        }
        return self._once(method, target, body, headers, wait)

    def _challenged(self, target: str, request: Callable[[str, str], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        """The run, and the answer to a request that signs a challenge.

        A challenge is good once: where an answer was lost and the request made again, it needs a new one.
        """
        for last in (False, False, True):
            greeting = self._greeting()
            run, challenge = greeting["run"], greeting["challenge"]
            table = {"key": encoded(self.key.public), "challenge": challenge, **request(run, challenge)}
            try:
                return run, self._settled("POST", target, json.dumps(table).encode()).table
            except Ended as ended:
                if last or ended.code != "credentials":
                    raise
        raise AssertionError("the last try answers or raises")

    def _greeting(self) -> dict[str, Any]:
        greeting = self._settled("GET", "/v1/hello", b"").table
        if not isinstance(greeting.get("run"), str) or not isinstance(greeting.get("challenge"), str):
            raise Ended("wire", f"{self.url} does not answer as a fedasmu server does")
        if wire.VERSION not in greeting.get("wire", []):
            raise Ended(
                "wire",
                f"{self.url} runs fedasmu {greeting.get('fedasmu')} (wire {greeting.get('wire')}), this is fedasmu "
                f"{fedasmu.__version__} (wire [{wire.VERSION}]): install the same version on both sides",
            )
        return greeting

    def _settled(self, method: str, target: str, body: bytes) -> Reply:
        """An answer that is not a refusal."""
        reply = self._insist(lambda: self._once(method, target, body, {"Content-Type": "application/json"}, 0.0))
        if reply.status >= HTTPStatus.BAD_REQUEST:
            table = reply.table
            raise Ended(str(table.get("error", reply.status)), str(table.get("say", f"{self.url}: {reply.status}")))
        return reply

    def _insist(self, attempt: Callable[[], Reply]) -> Reply:
        """Until there is an answer, with pauses drawn from a growing range, so that a fleet does not come at once."""
        longest, told, until = FIRST, False, time.monotonic() + self.patience
        while True:
            try:
                reply = attempt()
                if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR and reply.status != HTTPStatus.TOO_MANY_REQUESTS:
                    return reply
                trouble, pause = str(reply.table.get("say", f"status {reply.status}")), reply.pause
            except HTTPError as error:
                trouble, pause = _reason(error), 0.0
                self._check_pin(error)
            if time.monotonic() > until:
                raise UserError(f"{self.url}: {trouble}; is the server running, and is this its address?")
            if not told:
                self.say(f"{self.url}: {trouble}; trying again until it answers")
                told = True
            if self.stopping.wait(pause + self._random.uniform(0.0, longest)):
                raise Stopped
            longest = min(LONGEST, 2 * longest)

    def _once(self, method: str, target: str, body: bytes, headers: dict[str, str], wait: float) -> Reply:
        reply = self._pool.request(
            method,
            self.url + target,
            body=body,
            headers=headers | {"User-Agent": f"fedasmu/{fedasmu.__version__}"},
            timeout=Timeout(connect=10.0, read=wait + 60.0 + len(body) / 16_384),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            data = reply.read(self.largest + 1)
            if len(data) > self.largest:
                reply.close()
                raise HTTPError("the reply is longer than any that was asked for")
            pause = reply.headers.get("Retry-After", "0")
            return Reply(reply.status, data, min(float(pause), 600.0) if pause.isdigit() else 0.0)
        finally:
            reply.release_conn()

    def _connect(self) -> None:
        """A pinned certificate is checked in the handshake, before a byte of a request is sent."""
        pin = self.pins[0]
        tls: dict[str, Any] = {"ssl_minimum_version": 0x0304}
        tls |= {} if pin == PUBLIC else {"cert_reqs": "CERT_NONE", "assert_fingerprint": pin.hex()}
        host = urlsplit(self.url).hostname or ""
        proxy = getproxies().get(urlsplit(self.url).scheme)
        if proxy and not proxy_bypass(host):
            self._pool: urllib3.PoolManager = urllib3.ProxyManager(proxy, maxsize=4, **tls)
        else:
            self._pool = urllib3.PoolManager(maxsize=4, **tls)

    def _check_pin(self, error: Exception) -> None:
        """Another certificate than expected: the next one that the server announced, or somebody else's."""
        if isinstance(error, MaxRetryError) and error.reason is not None:
            error = error.reason
        if not isinstance(error, SSLError) or not any(word in str(error) for word in ("ingerprint", "CERTIFICATE")):
            return
        if len(self.pins) < 2:
            raise Ended(
                "certificate",
                f"{self.url} shows another certificate than the invite's: the address is another server's, or somebody "
                "stands between; nothing was sent. If the server's certificate was renewed, ask for a new invite",
            )
        self.pins = self.pins[1:]
        self._connect()


def checked_url(url: str) -> str:
    parts = urlsplit(url.strip())
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not local):
        raise UserError(f"{url}: write the server's address as https://host:port, as `fedasmu serve` prints it")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, MaxRetryError) and error.reason is not None else error
    if isinstance(inner, TimeoutError) and not isinstance(inner, NewConnectionError):  # a refusal came in time
        return "no answer in time"
    return "the connection broke off" if isinstance(inner, ProtocolError) else str(inner).rpartition(": ")[2]
