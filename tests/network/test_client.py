"""The client: it speaks to the pinned server only, and does not tire of it. Real sockets, real TLS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import HTTPError

from fedasmu.errors import UserError
from fedasmu.network import client as clients
from fedasmu.network.client import Client, Stopped
from fedasmu.network.connection import PUBLIC, Connection, Ended, checked_url
from fedasmu.network.keys import Key, content_digest, decoded, request_text, verified
from fedasmu.network.listener import bound
from helpers.served import HOST, Served, eventually, served

seen: list[dict[str, Any]] = []
troubles: list[int] = []
strangers: list[int] = []  # the same, of a proxy that has no server


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    seen.append({"method": scope["method"], "path": scope["path"], **headers})
    before = bool(strangers)
    status = strangers.pop() if before else troubles.pop() if troubles else 200
    greeting = {"run": "r1", "challenge": "c", "wire": [1 if scope["path"] != "/old/v1/hello" else 9], "fedasmu": "9.9"}
    said = {"error": "refused"} if status >= 400 and not before else greeting
    reply = bytes(2 << 20) if scope["path"] == "/large" else json.dumps(said).encode()
    fields = [
        (b"content-length", str(len(reply)).encode()),
        (b"retry-after", b"\xb2" if scope["path"] == "/squared" else b"0"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": reply})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(application, tmp_path_factory.mktemp("keys")) as running:
        yield running


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FIRST", 0.01)
    seen.clear()


def made(server: Served, folder: Path, *pins: bytes, **options: Any) -> Client:
    client = Client(server.url, Key.at(folder / "key"), pins or [server.pin], **options)
    client.run, client.device, client.visit = "r1", 3, "v1"
    return client


def test_a_request_is_signed_over_all_that_it_is(server: Served, tmp_path: Path) -> None:
    client = made(server, tmp_path)
    for number in range(2):
        assert client.request("PUT", "/v1/tasks/5/result?x=1", b"body").status == 200
        found = seen[-1]
        text = request_text("r1", "PUT", "/v1/tasks/5/result?x=1", 3, "v1", number, content_digest(b"body"))
        assert verified(client.key.public, decoded(found["fedasmu-signature"], 64), text)
        assert (found["fedasmu-device"], found["fedasmu-sequence"]) == ("3", str(number))


def test_to_another_server_not_a_byte_is_sent(server: Served, tmp_path: Path) -> None:
    client = made(server, tmp_path, bytes([1]) * 32)
    with pytest.raises(Ended, match="another certificate") as caught:
        client.request("GET", "/v1/task")
    assert caught.value.code == "certificate"
    assert not seen


def test_a_public_authority_is_asked_where_nothing_is_pinned(server: Served, tmp_path: Path) -> None:
    """The server's own certificate is signed by nobody that this machine trusts."""
    with pytest.raises(Ended, match=r"does not trust \(self-signed certificate\)"):
        made(server, tmp_path, PUBLIC).request("GET", "/v1/task")
    assert not seen


def test_the_announced_next_certificate_is_taken(server: Served, tmp_path: Path) -> None:
    client = made(server, tmp_path, bytes([1]) * 32, server.pin)
    assert client.request("GET", "/v1/task").status == 200
    assert client.pins == [server.pin]


def test_threads_that_meet_the_next_certificate_at_once_turn_to_it_once(server: Served, tmp_path: Path) -> None:
    """Each has its own request under way when the server comes back with it."""
    client = made(server, tmp_path, bytes([1]) * 32, server.pin)
    connection, before = client._connection, client._connection._trusting
    assert client.request("GET", "/v1/task").status == 200
    now, connection._trusting = connection._trusting, before
    with pytest.raises(HTTPError) as met:
        before[0].request("GET", client.url, retries=False)
    connection._trusting = now
    connection._check_pin(met.value, before[1])
    assert connection._trusting is now
    assert client.pins == [server.pin]


def test_it_tries_again_until_it_is_heard_and_says_so_once(server: Served, tmp_path: Path) -> None:
    troubles.extend([503, 507, 429, 500])
    said: list[str] = []
    assert made(server, tmp_path, say=said.append).request("GET", "/v1/task").status == 200
    assert len(seen) == 5
    assert len(said) == 1


def test_a_pause_that_is_no_number_is_none(server: Served, tmp_path: Path) -> None:
    assert made(server, tmp_path).request("GET", "/squared").pause == 0.0, "a small 2 is a digit, and no number"


def test_what_the_server_refuses_is_an_answer(server: Served, tmp_path: Path) -> None:
    for status in (401, 403, 409, 410, 413, 422):
        troubles.append(status)
        assert made(server, tmp_path).request("GET", "/v1/task").status == status


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 410, 413])
def test_what_somebody_before_the_server_says_is_no_answer(server: Served, tmp_path: Path, status: int) -> None:
    """A proxy whose server is away: a device that took this for an answer would give its task up, or ask at once."""
    strangers.extend([status] * 3)
    said: list[str] = []
    client = made(server, tmp_path, say=said.append)
    assert client.request("PUT", "/v1/tasks/5/result", b"body").status == 200
    assert len(seen) == 4
    assert said == [f"{client.url}: status {status}; trying again until it answers"]


def test_it_stops_when_it_is_told_to(tmp_path: Path) -> None:
    listening = bound(HOST, 0)  # nobody accepts there
    stopping = threading.Event()
    url = f"https://{HOST}:{listening.getsockname()[1]}"
    listening.close()
    client = Client(url, Key.at(tmp_path / "key"), [bytes(32)], stopping=stopping)
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            client.request("GET", "/v1/task")
        except Stopped as stopped:
            outcome.append(stopped)

    thread = threading.Thread(target=work)
    thread.start()
    stopping.set()
    assert eventually(lambda: outcome)
    thread.join()
    assert client.once("GET", "/v1/task") is None


def test_a_first_contact_that_fails_is_a_sentence(tmp_path: Path) -> None:
    listening = bound(HOST, 0)
    url = f"https://{HOST}:{listening.getsockname()[1]}"
    listening.close()
    client = Client(url, Key.at(tmp_path / "key"), [bytes([1]) * 32])
    client.patience = 0.05
    with pytest.raises(UserError, match=f"{url}: .*refused; is the server running"):
        client.hello(1)


def test_a_reply_longer_than_any_that_was_asked_for_is_not_read(server: Served, tmp_path: Path) -> None:
    client = made(server, tmp_path)
    assert client.once("GET", "/large") is None
    client.largest = 3 << 20
    reply = client.once("GET", "/large")
    assert reply is not None
    assert len(reply.body) == 2 << 20


def test_another_version_of_the_wire_is_named_on_both_sides(server: Served, tmp_path: Path) -> None:
    client = Client(f"{server.url}/old", Key.at(tmp_path / "key"), [server.pin])
    with pytest.raises(Ended, match=r"runs fedasmu 9\.9 \(wire \[9\]\), this is fedasmu .* \(wire \[1\]\)"):
        client.hello(1)


@pytest.mark.parametrize("url", ["", "host:8443", "ftp://host", "http://example.org:80", "https://"])
def test_an_address_that_is_none_is_said_to_be_none(url: str) -> None:
    with pytest.raises(UserError, match="https://host:port"):
        checked_url(url)


def test_what_has_a_certificate_is_asked_by_tls() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:80: .*: write https://"):
        Connection("http://127.0.0.1:80", [bytes(31) + b"1"])
    assert Connection("http://127.0.0.1:80", [PUBLIC]).url == "http://127.0.0.1:80", "a proxy of this machine"


@pytest.mark.parametrize("url", ["https://host:8443/", " https://host:8443", "http://127.0.0.1:80/a/"])
def test_an_address_is_taken_without_what_is_too_much(url: str) -> None:
    assert checked_url(url) == url.strip().rstrip("/")
