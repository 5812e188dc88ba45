"""Peers that do not behave: raw requests, signed or not, over sockets of their own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections import Counter
from itertools import count

from fedasmu.network.client import Client
from fedasmu.network.folder import Folder
from fedasmu.network.keys import content_digest, encoded, request_text
from fedasmu.protocol import Task
from trials.devices import greet, seated, task_in

HOST = "127.0.0.1"
ELSEWHERE = "127.0.0.66"  # this machine too, but another address to the server's gate


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


CONTEXT = trusting()


def connected(port: int, source: str = HOST) -> ssl.SSLSocket:
    raw = socket.create_connection((HOST, port), 20, source_address=(source, 0))
    try:
        return CONTEXT.wrap_socket(raw)
    except BaseException:
        raw.close()
        raise


class Insider:
    """Has a seat and a key, and signs whatever it likes."""

    def __init__(self, folder: Folder, number: int) -> None:
        self.port = folder.port
        self.client = Client(folder.url, seated(folder, number), [folder.pin()])
        self.client.largest = 64 << 20
        greet(self.client)
        self._sequence = count(1 << 20)
        self._socket: ssl.SSLSocket | None = None

    def task(self) -> Task | None:
        reply = self.client.request("GET", "/v1/task?wait=5", wait=5.0)
        return task_in(reply) if reply.status == 200 else None

    def signature(self, method: str, target: str, body: bytes = b"") -> dict[str, str]:
        """The headers of a request that is signed for these values."""
        digest, sequence, who = content_digest(body), next(self._sequence), self.client
        text = request_text(who.run, method, target, who.device, who.visit, sequence, digest)
        return {
            "fedasmu-device": str(who.device),
            "fedasmu-visit": who.visit,
            "fedasmu-sequence": str(sequence),
            "fedasmu-signature": encoded(who.key.sign(text)),
            "content-digest": digest,
        }

    def send(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """The status of the reply; 0 where the connection was cut. Signed as it should be, unless headers are given."""
        given = self.signature(method, target, body) if headers is None else headers
        message = request(method, target, body, given)
        for _ in range(2):  # a connection that was let go, or never came to be, is opened again
            with contextlib.suppress(OSError):
                if self._socket is None:
                    self._socket = connected(self.port)
                self._socket.sendall(message)
                if status := status_of(self._socket):
                    return status
            self.close()
        return 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def request(method: str, target: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if "transfer-encoding" not in headers and "content-length" not in headers:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def status_of(connection: ssl.SSLSocket) -> int:
    """Reads a whole reply, so that the next one can follow."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65_536)):
            return 0
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(rest) < length:
        if not (piece := connection.recv(65_536)):
            return 0
        rest += piece
    return int(lines[0].split()[1])


def hold(port: int, opening: bytes, trickle: bytes, limit: float = 60.0) -> float:
    """Seconds until the server lets go of a peer that says this, and then a byte a second."""
    began = time.monotonic()
    with contextlib.suppress(OSError), connected(port) as connection:
        connection.settimeout(1.0)
        connection.sendall(opening)
        while time.monotonic() - began < limit:
            with contextlib.suppress(TimeoutError):
                if connection.recv(4096) == b"":
                    break
            if trickle:
                connection.sendall(trickle)
    return time.monotonic() - began


def shaken(port: int, until: float) -> Counter[str]:
    """Connections with a handshake, one after the other until then, from another address than the devices'."""
    outcomes: Counter[str] = Counter()
    while time.monotonic() < until:
        try:
            connected(port, ELSEWHERE).close()
            outcomes["handshakes"] += 1
        except OSError:
            outcomes["turned_away"] += 1
    return outcomes
