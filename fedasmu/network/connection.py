"""Requests to one server. Its certificate is checked in the handshake, before a byte of a request is sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
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

PUBLIC = bytes(32)  # a pin of zeros: the certificate is one of a public authority
CHUNK = 16_384  # bytes of a reply that are read at a time
NAME = re.compile(r"[!-~]{1,256}")
RATE = 16_384  # bytes a second that a body is given time for

Heard = Callable[[bytearray], None]
"""Is shown a reply's body as it grows."""


class Ended(UserError):
    """The server will not have this device, or has nothing for it any more: there is no point in trying again."""

    def __init__(self, code: str, say: str) -> None:
        super().__init__(say)
        self.code = code


class Cut(HTTPError):
    """A reply broke off. What had come of it may be kept."""

    def __init__(self, status: int, body: bytes, cause: Exception) -> None:
        super().__init__(str(cause))
        self.status, self.body, self.cause = status, body, cause


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    pause: float = 0.0  # seconds, from Retry-After

    @property
    def table(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {}

    @property
    def is_answer(self) -> bool:
        """Not a server in trouble, nor the word of somebody before it: a proxy without a server says what it likes."""
        if self.status >= HTTPStatus.MULTIPLE_CHOICES and not isinstance(self.table.get("error"), str):
            return False
        return self.status < HTTPStatus.INTERNAL_SERVER_ERROR and self.status != HTTPStatus.TOO_MANY_REQUESTS


class Connection:
    def __init__(self, url: str, pins: Sequence[bytes]) -> None:
        self.url, self.pins = checked_url(url), list(pins)
        if self.url.startswith("http:") and self.pins[0] != PUBLIC:
            raise UserError(f"{url}: the invite is of a server with a certificate: write https://")
        self._turning = threading.Lock()
        self._connect()

    def once(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        wait: float = 0.0,
        largest: int,
        heard: Heard | None = None,
    ) -> Reply:
        """One request, and its reply of at most so many bytes."""
        pool, pin = self._trusting
        try:
            reply = pool.request(
                method,
                self.url + target,
                body=body,
                headers={**headers, "User-Agent": f"fedasmu/{fedasmu.__version__}"},
                timeout=Timeout(connect=10.0, read=wait + 60.0 + len(body) / RATE),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except HTTPError as error:
            self._check_pin(error, pin)
            raise
        try:
            data = self._read(reply, largest, heard)
            pause = reply.headers.get("Retry-After", "0")
            return Reply(reply.status, data, min(float(pause), 600.0) if pause.isdecimal() else 0.0)
        finally:
            reply.release_conn()

    def close(self) -> None:
        self._trusting[0].clear()

    def _check_pin(self, error: Exception, pin: bytes) -> None:
        """Another certificate than this one: the next one that the server announced, or somebody else's."""
        error = _inner(error)
        if not isinstance(error, SSLError) or not any(word in str(error) for word in ("ingerprint", "CERTIFICATE")):
            return
        with self._turning:
            if pin != self._trusting[1]:
                return  # another thread has met it before
            others = [one for one in self.pins if one != pin]
            if not others:
                raise Ended("certificate", f"{self.url} {_stranger(pin, str(error))}; nothing was sent")
            self.pins = others
            self._connect()

    def _read(self, reply: urllib3.BaseHTTPResponse, largest: int, heard: Heard | None) -> bytes:
        data = bytearray()
        try:
            while len(data) <= largest and (chunk := reply.read(CHUNK)):
                data += chunk
                if heard is not None and reply.status == 200:
                    heard(data)
        except HTTPError as error:
            raise Cut(reply.status, bytes(data), error) from error
        if len(data) > largest:
            reply.close()
            raise HTTPError("the reply is longer than any that was asked for")
        return bytes(data)

    def _connect(self) -> None:
        pin = self.pins[0]
        tls: dict[str, Any] = {"ssl_minimum_version": 0x0304}
        tls |= {} if pin == PUBLIC else {"cert_reqs": "CERT_NONE", "assert_fingerprint": pin.hex()}
        host = urlsplit(self.url).hostname or ""
        proxy = getproxies().get(urlsplit(self.url).scheme)
        if proxy and not proxy_bypass(host):
            pool: urllib3.PoolManager = urllib3.ProxyManager(proxy, maxsize=4, **tls)
        else:
            pool = urllib3.PoolManager(maxsize=4, **tls)
        self._trusting = pool, pin  # both at once: requests are made by several threads


def _stranger(pin: bytes, error: str) -> str:
    if pin != PUBLIC:
        return (
            "shows another certificate than the invite's, or than the state folder knows from an earlier run: the "
            "address is another server's, or somebody stands between. For another server give another --state; if "
            "this one's certificate was renewed, ask for a new invite, and delete server.json in the state folder"
        )
    reason = re.search(r"verify failed: (.*?)(?: \(_ssl|$)", error)
    return (
        f"shows a certificate that this machine does not trust ({reason[1] if reason else error}): is the address "
        "right, and this machine's clock?"
    )


def checked_name(given: Any) -> str:
    """Of a run, a visit or a challenge: it will stand in what is signed, and in a line of a head."""
    if not NAME.fullmatch(given):
        raise ValueError("no name")
    return str(given)


def checked_url(url: str) -> str:
    parts = urlsplit(url.strip())
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not local):
        raise UserError(f"{url}: write the server's address as https://host:port, as `fedasmu serve` prints it")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def reason(error: Exception) -> str:
    """Why there was no answer, for people."""
    inner = _inner(error)
    if isinstance(inner, TimeoutError) and not isinstance(inner, NewConnectionError):  # a refusal came in time
        return "no answer in time"
    return "the connection broke off" if isinstance(inner, ProtocolError) else str(inner).rpartition(": ")[2]


def _inner(error: Exception) -> Exception:
    if isinstance(error, Cut):
        return error.cause
    return error.reason if isinstance(error, MaxRetryError) and error.reason is not None else error
