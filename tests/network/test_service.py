"""Nobody gets in: every route of the application itself against every wrong credential, over real TLS."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import urllib3

from fedasmu.network import keys, wire
from fedasmu.network.client import Client
from fedasmu.network.connection import Ended, Reply
from fedasmu.network.keys import Invite, Key
from fedasmu.protocol import Report
from fedasmu.run import links
from helpers.federation import Federation, enrolled
from helpers.served import eventually, trusting

OPEN = {("GET", "/healthz"), ("GET", "/v1/hello"), ("POST", "/v1/hello"), ("POST", "/v1/enrol"), ("POST", "/v1/key")}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server with two seats taken: an honest device that holds a task, and a revoked one."""
    running = Federation(tmp_path_factory.mktemp("run"), stop={"uploads": 100_000}, network={"gather": 0.0})
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def honest(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return enrolled(federation, tmp_path_factory.mktemp("honest"), 0, len(federation.data.shards[0]))


@pytest.fixture
def task(honest: Client, federation: Federation) -> int:
    """The honest device's open task."""
    reply = honest.request("GET", "/v1/task?wait=20", wait=20.0)
    if reply.status == 410:  # so many tests have asked for it that it was lost: there is a new one
        reply = honest.request("GET", "/v1/task?wait=20", wait=20.0)
    assert reply.status == 200
    size = federation.world.layout.size
    return wire.read_task(reply.body, size).id


def routes(federation: Federation) -> list[tuple[str, str]]:
    """As the application itself lists them."""
    found = []
    for route in federation.serving.running.app.routes:
        for method in route.methods - {"HEAD"}:  # type: ignore[attr-defined]
            found.append((method, route.path))  # type: ignore[attr-defined]
    return found


def signed(client: Client, method: str, target: str, body: bytes = b"", **changes: Any) -> Reply:
    """A signed request in which some part is then replaced."""
    digest = keys.content_digest(body)
    run, device, visit = changes.get("run", client.run), client.device, client.visit
    sequence = changes.get("sequence", client._sequence)
    client._sequence = max(client._sequence, sequence) + 1
    parts = (run, changes.get("verb", method), changes.get("path", target), device, visit, sequence)
    text = keys.request_text(*parts, changes.get("digest", digest))
    headers = {
        "Fedasmu-Device": str(changes.get("device", device)),
        "Fedasmu-Visit": changes.get("visit", visit),
        "Fedasmu-Sequence": str(sequence),
        "Fedasmu-Signature": changes.get("signature", keys.encoded(changes.get("key", client.key).sign(text))),
        "Content-Digest": digest,
    }
    for name in changes.get("without", ()):
        del headers[name]
    return client._connection.once(method, target, body, headers, largest=1 << 20)


def test_every_route_is_closed_or_listed_as_open(
    federation: Federation, honest: Client, task: int, tmp_path: Path
) -> None:
    other = enrolled(federation, tmp_path, 1, 20)
    revoked = enrolled(federation, tmp_path, 2, 20)
    federation.folder.register.revoke("device-2")
    assert eventually(lambda: signed(revoked, "GET", "/v1/task?wait=0").status == 401)
    stranger = Key.at(tmp_path / "stranger")
    wrong: dict[str, Any] = {
        "no signature": {"without": ["Fedasmu-Signature"]},
        "no device": {"without": ["Fedasmu-Device"]},
        "no visit": {"without": ["Fedasmu-Visit"]},
        "no sequence": {"without": ["Fedasmu-Sequence"]},
        "no digest": {"without": ["Content-Digest"]},
        "another key": {"key": stranger},
        "another device's key": {"key": other.key},
        "another device's number": {"device": other.device},
        "a device that is none": {"device": 10**9},
        "a negative device": {"device": -1},
        "a device in letters": {"device": "zero"},
        "another device's visit": {"visit": other.visit},
        "a visit that is none": {"visit": "0" * 32},
        "another run": {"run": "0" * 16},
        "another method": {"verb": "PATCH"},
        "another path": {"path": "/v1/tasks/99/beat"},
        "another body": {"digest": keys.content_digest(b"other")},
        "no base64": {"signature": "!" * 86},
        "a short signature": {"signature": keys.encoded(bytes(10))},
        "zeros": {"signature": keys.encoded(bytes(64))},
        "a used sequence": {"sequence": 0},
        "a negative sequence": {"sequence": -5},
    }
    before = federation.serving.ledger.next
    tried = 0
    for method, path in routes(federation):
        if (method, path) in OPEN:
            continue
        target = path.format(task=task, version=0, digest="0" * 64)
        for name, change in wrong.items():
            reply = signed(honest, method, target, b"body" if method == "PUT" else b"", **change)
            assert reply.status == 401, f"{method} {path} with {name}: {reply.status}"
            tried += 1
        assert signed(revoked, method, target).status == 401
    assert tried >= 5 * len(wrong)
    assert federation.serving.ledger.next == before, "nobody has changed anything"


def test_a_task_of_another_device_is_gone(federation: Federation, task: int, tmp_path: Path) -> None:
    thief = enrolled(federation, tmp_path, 3, 20)
    body = wire.report_frame(Report(torch.zeros(federation.world.layout.size), 1, 0.5), {})
    for number in (task, task + 1000, 10**15):
        for method, path, sent in (
            ("POST", "fresh", b""),
            ("POST", "beat", b""),
            ("POST", "fail", b"x"),
            ("PUT", "result", body),
        ):
            assert signed(thief, method, f"/v1/tasks/{number}/{path}", sent).status == 410


def test_a_number_in_a_request_that_is_none_is_said_to_be_none(honest: Client, task: int) -> None:
    for ask in ("-1", "1.0", "%C2%B2", "1" * 10):
        assert signed(honest, "POST", f"/v1/tasks/{task}/fresh?ask={ask}").status == 400
    for path in ("/v1/tasks/x/result", "/v1/tasks/-1/result", f"/v1/models/{'9' * 5000}"):
        assert signed(honest, "GET", path).status == 404


WHOLE, HALF = "A" * 43, "\ud800"


@pytest.mark.parametrize(
    ("method", "target", "table"),
    [
        ("GET", f"/v1/tasks/{'9' * 5000}/result", None),
        ("GET", f"/v1/models/{'9' * 5000}", None),
        ("POST", "/v1/hello", {"key": WHOLE, "examples": 5, "challenge": HALF, "signature": "A" * 86}),
        ("POST", "/v1/hello", {"key": HALF, "examples": 5, "challenge": "x", "signature": "A" * 86}),
        ("POST", "/v1/enrol", {"key": WHOLE, "examples": 5, "challenge": "x", "name": HALF}),
        ("POST", "/v1/enrol", {"key": WHOLE, "examples": 5, "challenge": "x", "name": "x", "invite": HALF}),
        ("POST", "/v1/key", {"key": WHOLE, "new": WHOLE, "challenge": HALF}),
    ],
)
def test_what_a_stranger_sends_is_no_failure_of_the_server(
    honest: Client, method: str, target: str, table: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Numbers without end and halves of letters, which JSON has: refused, and not a word about them on the terminal."""
    body = b"" if table is None else json.dumps(table).encode()
    assert honest._connection.once(method, target, body, {}, largest=1 << 20).status in (400, 401)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "sent", [b"\0 garbage\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"]
)
def test_bytes_that_are_no_request_are_not_told_of(
    federation: Federation, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with trusting().wrap_socket(socket.create_connection(("127.0.0.1", federation.folder.port))) as peer:
        peer.sendall(sent)
        assert peer.recv(1000).startswith(b"HTTP/1.1 4")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, b""),
        (413, b"x"),
        (413, bytes(30_000)),
        (422, None),
    ],
)
def test_a_body_that_is_no_report_is_refused_and_the_task_stays(
    federation: Federation, honest: Client, task: int, status: int, body: bytes | None
) -> None:
    lengths = federation.serving.running.lengths
    body = bytes(lengths.start + 20) if body is None else body
    assert signed(honest, "PUT", f"/v1/tasks/{task}/result", body).status == status
    assert task in federation.serving.coordinator.server.ledger


def test_of_a_body_that_is_no_report_nobody_notes_how_long_it_took(
    federation: Federation, honest: Client, task: int
) -> None:
    """A head alone can be as long as a small model: without bytes of a model no link can be measured."""
    text = b'{"loss":0.5,"note":{}}'.ljust(federation.serving.running.lengths.start)
    body = wire.PREFIX.pack(wire.MAGIC, len(text)) + text
    reply = honest._signed("PUT", f"/v1/tasks/{task}/result", body, 0.0, more={"Fedasmu-Training": "1"})
    assert reply.status == 422
    assert federation.serving.coordinator.ways == {}
    assert links.read(federation.path) == {}


def test_a_body_other_than_the_signed_one_is_refused(honest: Client, federation: Federation, task: int) -> None:
    body = wire.report_frame(Report(torch.zeros(federation.world.layout.size), 1, 0.5), {})
    digest = keys.content_digest(body)
    text = keys.request_text(
        honest.run, "PUT", f"/v1/tasks/{task}/result", honest.device, honest.visit, honest._sequence, digest
    )
    headers = {
        "Fedasmu-Device": str(honest.device),
        "Fedasmu-Visit": honest.visit,
        "Fedasmu-Sequence": str(honest._sequence),
        "Fedasmu-Signature": keys.encoded(honest.key.sign(text)),
        "Content-Digest": digest,
    }
    honest._sequence += 1
    flipped = bytes([*body[:-1], body[-1] ^ 1])
    reply = honest._connection.once("PUT", f"/v1/tasks/{task}/result", flipped, headers, largest=1 << 20)
    assert (reply.status, reply.table["error"]) == (400, "digest")


def test_a_chunked_body_is_refused(honest: Client, task: int) -> None:
    pool = urllib3.HTTPSConnectionPool(
        "127.0.0.1", int(honest.url.rpartition(":")[2]), cert_reqs="CERT_NONE", assert_fingerprint=honest.pins[0].hex()
    )
    text = keys.request_text(
        honest.run,
        "PUT",
        f"/v1/tasks/{task}/result",
        honest.device,
        honest.visit,
        honest._sequence,
        keys.content_digest(b""),
    )
    headers = {
        "Fedasmu-Device": str(honest.device),
        "Fedasmu-Visit": honest.visit,
        "Fedasmu-Sequence": str(honest._sequence),
        "Fedasmu-Signature": keys.encoded(honest.key.sign(text)),
        "Content-Digest": keys.content_digest(b""),
    }
    honest._sequence += 1
    reply = pool.request(
        "PUT", f"/v1/tasks/{task}/result", body=iter([b"a", b"b"]), headers=headers, chunked=True, retries=False
    )
    assert reply.status == 411
    pool.close()


GREETINGS: list[Any] = [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 4000, json.dumps({"key": 5}).encode()]


@pytest.mark.parametrize("path", ["/v1/hello", "/v1/enrol", "/v1/key"])
@pytest.mark.parametrize("body", GREETINGS, ids=repr)
def test_a_greeting_that_is_none_is_refused(honest: Client, path: str, body: bytes) -> None:
    assert honest._connection.once("POST", path, body, {}, largest=1 << 20).status in (400, 413, 422)


def test_an_invite_is_good_for_its_run_its_key_and_its_uses(
    federation: Federation, honest: Client, tmp_path: Path
) -> None:
    def attempt(invite: Invite, number: int, name: str = "x") -> str:
        client = Client(federation.folder.url, Key.at(tmp_path / str(number)), [federation.folder.pin()])
        try:
            return str(client.enrol(invite, f"{name}-{number}", 5)["device"])
        except Ended as ended:
            return ended.code

    good = federation.folder.invite()
    forged = Invite(good.id, bytes(32), good.pin)
    assert attempt(forged, 1) == "credentials"
    assert attempt(Invite("nobody", good.seed, good.pin), 1) == "invite-unknown"
    assert attempt(federation.folder.invite(hours=-1.0), 1) == "invite-expired"
    assert attempt(good, 1, "../../etc/passwd") == "name"
    assert attempt(good, 1).isdigit()
    assert attempt(good, 2) == "invite-used"
    assert attempt(good, 1).isdigit(), "the same key gets its seat again"


def test_a_challenge_is_good_once(federation: Federation, honest: Client) -> None:
    greeting = honest._plain("GET", "/v1/hello", b"").table
    text = keys.hello_text(greeting["run"], greeting["challenge"], honest.key.public)
    table = {
        "key": keys.encoded(honest.key.public),
        "challenge": greeting["challenge"],
        "signature": keys.encoded(honest.key.sign(text)),
        "wire": 1,
        "examples": 20,
    }
    body = json.dumps(table).encode()
    replies = [honest._connection.once("POST", "/v1/hello", body, {}, largest=1 << 20) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 401]
    honest.hello(len(federation.data.shards[0]))


@pytest.mark.parametrize("examples", [0, -1, 10**12, 1.5, True, None, "5"])
def test_a_device_may_not_say_what_cannot_be_of_its_examples(honest: Client, examples: Any) -> None:
    with pytest.raises(Ended, match="examples"):
        honest.hello(examples)


def test_a_device_that_asks_too_fast_is_slowed_down(federation: Federation, tmp_path: Path) -> None:
    eager = enrolled(federation, tmp_path, 9, 20)
    statuses = [signed(eager, "POST", "/v1/tasks/0/beat").status for _ in range(80)]
    assert 429 in statuses
    assert set(statuses) <= {410, 429}
