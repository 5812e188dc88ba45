"""Slow, silent and endless peers are cut off; honest ones are not. Real sockets, real TLS."""

from __future__ import annotations

import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedasmu.errors import UserError
from fedasmu.network.deadline import BUFFER, DEVICE, Deadlined, Patience
from fedasmu.network.listener import TLS_BUFFER, Bucket, Buckets, Gate, bound
from fedasmu.network.replies import Framed
from helpers.served import HOST, Served, eventually, served, trusting

SHORT = Patience(seconds=1.0, least=1.0, rate=1e8, head=4096, body=400_000)
ENDLESS = Patience(seconds=600.0, least=600.0, idle=600.0, body=400_000)  # for those who are not to be cut
LARGE = 20 << 20
LONG = 30.0  # what a test waits for a cut that should come in a fraction of a second


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """/count: how long the body is. /ignore: the body is not read. /large: a reply of 20 MB; /frame: in pieces.

    /stream: 20 MB, and then nothing for as long as the peer is there.
    """
    body = b""
    if scope["path"] == "/count":
        scope[DEVICE] = 1
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
    if scope["path"] == "/frame":
        await Framed([b"head", bytes(LARGE)])(scope, receive, send)
        return
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    reply = bytes(LARGE) if scope["path"] == "/large" else str(len(body)).encode()
    headers = [(b"content-length", str(len(reply)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(application, tmp_path_factory.mktemp("keys"), SHORT) as running:
        yield running


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(application, tmp_path_factory.mktemp("keys"), ENDLESS) as running:
        yield running


def plain(server: Served) -> socket.socket:
    connection = socket.create_connection((HOST, server.port))
    connection.settimeout(LONG)
    return connection


def secure(server: Served) -> ssl.SSLSocket:
    """On a busy machine shaking hands may take longer than a server has patience: then once more."""
    for _ in range(50):
        with suppress(OSError):
            return trusting().wrap_socket(plain(server))
    return trusting().wrap_socket(plain(server))


def is_cut(connection: socket.socket) -> bool:
    """Whether the server ends the connection, without having replied."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def trickle_is_cut(connection: socket.socket, piece: bytes) -> bool:
    connection.settimeout(0.05)
    for _ in range(int(LONG / 0.05)):
        try:
            connection.sendall(piece)
            if connection.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except (ConnectionError, ssl.SSLError):
            return True
    return False


def test_a_peer_that_shakes_no_hand_is_cut(server: Served) -> None:
    assert is_cut(plain(server))


def test_a_silent_peer_is_cut(server: Served) -> None:
    assert is_cut(secure(server))


@pytest.mark.parametrize("piece", [b"a", b"\r\n"])
def test_a_trickled_head_is_cut(server: Served, piece: bytes) -> None:
    connection = secure(server)
    if piece == b"a":
        connection.sendall(b"GET /count HTTP/1.1\r\nx: ")
    assert trickle_is_cut(connection, piece)


def test_the_time_of_a_handshake_is_of_the_first_heads(tmp_path: Path) -> None:
    """Who takes long to shake hands has no second helping: with these values it could stay for an hour otherwise."""
    slow = Patience(seconds=3600.0, least=0.4)
    with served(application, tmp_path, slow) as server:
        loop_time = server.ask(server.loop.time)
        connection = secure(server)
        server.ask(lambda: _as_if_accepted(server, loop_time - 3600.0))
        connection.sendall(b"G")  # the first byte of a head, of which no more comes
        assert is_cut(connection)


def _as_if_accepted(server: Served, time: float) -> None:
    for connection in server.listener.state.connections:
        assert isinstance(connection, Deadlined)
        connection._accepted = time
        connection._expect(0)


def test_an_endless_head_is_cut(server: Served) -> None:
    connection = secure(server)
    with pytest.raises((ConnectionError, ssl.SSLError, BrokenPipeError)):  # noqa: PT012
        connection.sendall(b"GET /count HTTP/1.1\r\n")
        for _ in range(10_000):
            connection.sendall(b"x: " + b"y" * 1000 + b"\r\n")


@pytest.mark.parametrize("path", [b"/count", b"/ignore"])
def test_a_trickled_body_is_cut(server: Served, path: bytes) -> None:
    connection = secure(server)
    connection.sendall(b"PUT " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n")
    if path == b"/ignore":
        assert connection.recv(15).startswith(b"HTTP/1.1 200")
        while not connection.recv(1000).endswith(b"0"):
            pass
    assert trickle_is_cut(connection, b"x")


@pytest.mark.parametrize("length", [b"400001", b"99999999999999999999", b"-1", b"1e3"])
def test_a_body_that_is_announced_too_large_is_refused(patient: Served, length: bytes) -> None:
    connection = secure(patient)
    connection.sendall(b"PUT /count HTTP/1.1\r\nhost: x\r\ncontent-length: " + length + b"\r\n\r\n")
    reply = connection.recv(1000)
    assert reply.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert is_cut(connection)


def narrow(server: Served, path: bytes) -> ssl.SSLSocket:
    """Who has asked for something large, and has little room for it."""
    connection = plain(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    secured = trusting().wrap_socket(connection)
    secured.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert secured.recv(1)
    return secured


@pytest.mark.parametrize("path", [b"/large", b"/frame"])
def test_a_reader_that_does_not_read_is_cut(server: Served, path: bytes) -> None:
    connection = narrow(server, path)
    assert eventually(lambda: not server.ask(lambda: len(server.listener.state.connections)))
    connection.close()  # not before: it was the server that has ended it


def test_each_part_of_a_stream_has_a_time_of_its_own(tmp_path: Path) -> None:
    """A page that follows a run for hours, and is read as fast as it comes, was cut at its second large part."""
    with served(application, tmp_path, Patience(seconds=600.0)) as server:
        connection, read = narrow(server, b"/stream"), 0
        assert eventually(lambda: server.ask(lambda: deadlines(server)) != [None])
        while read < LARGE:
            read += len(connection.recv(1 << 16))
        assert eventually(lambda: server.ask(lambda: deadlines(server)) == [None])
        connection.close()


def deadlines(server: Served) -> list[float | None]:
    """By when each connection's reply must have been read."""
    return [connection._read_by for connection in server.listener.state.connections]  # type: ignore[union-attr]


def test_reading_a_little_now_and_then_does_not_prolong_the_time(tmp_path: Path) -> None:
    """At this pace the reply would take minutes; its time is 3.2 seconds. What the kernel has is read fast then."""
    with served(application, tmp_path, Patience(seconds=3.0, rate=1e8)) as server:
        connection, read, began = narrow(server, b"/frame"), 0, time.monotonic()
        with pytest.raises((ConnectionError, ssl.SSLError)):  # noqa: PT012
            while read < LARGE and (piece := connection.recv(1000)):
                read += len(piece)
                time.sleep(0.01 if time.monotonic() < began + 6.0 else 0.0)
            raise ConnectionError if read < LARGE else AssertionError


def test_a_frame_waits_in_pieces_for_a_reader(tmp_path: Path) -> None:
    with served(application, tmp_path, Patience(seconds=3600.0)) as server:
        connection = narrow(server, b"/frame")
        assert eventually(lambda: any(map(bool, server.ask(lambda: waiting(server)))))
        found = []
        for _ in range(100):
            assert connection.recv(1 << 14)
            found += server.ask(lambda: waiting(server))
        assert 0 < max(found) <= 2 * BUFFER


def waiting(server: Served) -> list[int]:
    """Bytes that each connection's peer has not taken."""
    return [connection.transport.get_write_buffer_size() for connection in server.listener.state.connections]


def test_an_honest_device_keeps_its_connection_through_many_requests(patient: Served) -> None:
    connection = secure(patient)
    for length in (0, 1, 70_000, 399_999):
        if length == 399_999:
            patient.ask(lambda: bored(patient))
        connection.sendall(b"PUT /count HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length + bytes(length))
        reply = b""
        while not reply.endswith(str(length).encode()):
            piece = connection.recv(1000)
            assert piece
            reply += piece
        assert reply.startswith(b"HTTP/1.1 200")
    assert is_cut(connection), "and when it has nothing more to say, it is let go"


def bored(server: Served) -> None:
    """After the next request nobody is waited for any more."""
    for connection in server.listener.state.connections:
        assert isinstance(connection, Deadlined)
        connection.patience = replace(ENDLESS, idle=0.1)


def test_the_gate_knows_who_is_there(patient: Served) -> None:
    connection = secure(patient)
    assert patient.ask(lambda: patient.listener.gate.open[HOST]) >= 1
    connection.close()
    assert eventually(lambda: not patient.ask(patient.listener.gate.open.total))


def test_more_connections_than_an_address_may_have_are_closed_at_once(tmp_path: Path) -> None:
    with served(application, tmp_path, Patience(), per_address=2) as server:
        held = [secure(server), secure(server)]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            secure(server)
        held[0].close()
        assert eventually(lambda: server.ask(server.listener.gate.open.total) < 2)
        secure(server).close()


def test_a_bucket_fills_again() -> None:
    bucket = Bucket(rate=2.0, burst=3.0, tokens=3.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.take(0.5)
    assert not bucket.take(0.5)


def test_the_gate_forgets_addresses_that_are_gone() -> None:
    gate = Gate(per_address=5)
    for number in range(20_000):
        assert gate.admits(str(number), now=float(number))
    assert len(gate.buckets) <= 10_001


def test_whoever_has_used_up_a_limit_is_not_forgotten_in_a_crowd() -> None:
    buckets = Buckets()
    assert [buckets.take("greedy", 1.0, 2.0, now=0.0) for _ in range(3)] == [True, True, False]
    for number in range(30_000):
        assert buckets.take(number, 1.0, 2.0, now=0.5)
    assert not buckets.take("greedy", 1.0, 2.0, now=0.9)
    assert buckets.take("greedy", 1.0, 2.0, now=1.9)
    assert len(buckets) == 30_001
    assert buckets.take("another", 1.0, 2.0, now=100.0)
    for number in range(20_000):
        assert buckets.take(f"later {number}", 1.0, 2.0, now=100.0 + number)
    assert len(buckets) < 25_000


def test_a_port_in_use_is_a_sentence() -> None:
    first = bound(HOST, 0)
    port = first.getsockname()[1]
    with pytest.raises(UserError, match=f"{HOST}:{port}: Address already in use; choose another with --listen"):
        bound(HOST, port)
    first.close()


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), (HOST, 99999)])
def test_an_address_that_is_not_ours_is_a_sentence(host: str, port: int) -> None:
    with pytest.raises(UserError, match="--listen"):
        bound(host, port)


def test_the_tls_buffer_of_a_connection_is_small(server: Served) -> None:
    """A change in the standard library would show here: 5,000 idle connections would take 1.1 GB more."""
    assert sslproto.SSLProtocol.max_size == TLS_BUFFER
