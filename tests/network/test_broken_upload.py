"""A large upload whose sending breaks off: the device sends the rest only, over real TLS through a proxy that cuts."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.requests import ClientDisconnect
from torch import nn

from fedasmu import Result
from fedasmu.network import client as clients
from fedasmu.network import service, wire
from fedasmu.network.client import Client
from fedasmu.network.connection import Reply
from fedasmu.network.door import Problem
from fedasmu.network.keys import Key, content_digest, encoded, request_text
from fedasmu.network.transfers import Parts
from fedasmu.protocol import Report, Task
from helpers.cutting import cutting
from helpers.federation import Federation
from helpers.served import HOST, eventually, trusting

LARGE = 100_000  # bytes, for these tests


def large() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 3000), nn.ReLU(), nn.Linear(3000, 2))  # 276 kB


@pytest.fixture(autouse=True, scope="module")
def _sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "LARGE", LARGE)
        patch.setattr(service, "LARGE", LARGE)
        patch.setattr(clients, "FIRST", 0.01)
        yield


def test_a_run_ends_though_no_connection_lasts_for_an_upload(tmp_path: Path) -> None:
    stop: dict[str, Any] = {"stop": {"uploads": 2}, "pacing": {"period": 0.02, "max_in_flight": 1, "count": 1}}
    federation = Federation(tmp_path, factory=large, algorithm={"name": "fedasmu"}, network={"gather": 0.0}, **stop)
    federation.start()
    with cutting(federation.folder.port, after=150_000, upward=True) as proxy:
        device = federation.device(0, url=f"https://{HOST}:{proxy.port}", model=large)
        federation.work(device)
        federation.wait()
        assert proxy.cuts >= 2
    summary = Result(federation.path).summary
    assert (summary["uploads"], summary["lost"], summary["refused"]) == (2, 0, 0)


def test_a_device_whose_visit_is_over_hears_of_it_though_no_connection_lasts_for_an_upload(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes while it still sends, on a connection that is then cut: it must not begin again for ever."""
    monkeypatch.setattr(clients, "LARGE", 1 << 30)
    sender = Sender(federation, tmp_path, 2)
    with cutting(federation.folder.port, after=150_000, upward=True) as proxy:
        client = Client(f"https://{HOST}:{proxy.port}", sender.client.key, [federation.folder.pin()])
        client.run, client.device, client.visit = sender.client.run, sender.client.device, "0" * 32
        client.patience = 60.0
        assert client.upload(sender.target, sender.body).status == 401


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    running = Federation(
        tmp_path_factory.mktemp("run"), factory=large, stop={"uploads": 1000}, network={"gather": 0.0, "lease": 100.0}
    )
    running.start()
    yield running
    running.stop()


class Sender:
    """A device with a task, whose report it sends in pieces as the test likes."""

    def __init__(self, federation: Federation, folder: Path, seat: int) -> None:
        self.federation, count = federation, len(federation.data.shards[seat])
        self.client = Client(federation.folder.url, Key.at(folder / f"key-{seat}"), [federation.folder.pin()])
        self.client.largest = 1 << 20
        self.client.enrol(federation.folder.invite(seat=seat), f"device-{seat}", count)
        self.client.hello(count)
        reply = self.client.request("GET", "/v1/task?wait=20", wait=20.0)
        self.task: Task = wire.read_task(reply.body, federation.world.layout.size)
        self.target = f"/v1/tasks/{self.task.id}/result"
        self.body = wire.report_frame(Report(self.task.model.vector, count, 0.5, {"path": 0.5}), {})

    def break_off(self, sent: int) -> None:
        """Announce the whole, send some of it, and go away."""
        client, digest = self.client, content_digest(self.body)
        sequence, client._sequence = client._sequence, client._sequence + 1
        text = request_text(client.run, "PUT", self.target, client.device, client.visit, sequence, digest)
        lines = [
            f"PUT {self.target} HTTP/1.1",
            "host: localhost",
            f"content-length: {len(self.body)}",
            f"fedasmu-device: {client.device}",
            f"fedasmu-visit: {client.visit}",
            f"fedasmu-sequence: {sequence}",
            f"fedasmu-signature: {encoded(client.key.sign(text))}",
            f"content-digest: {digest}",
        ]
        with trusting().wrap_socket(socket.create_connection((HOST, self.federation.folder.port), 60)) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + self.body[:sent])
            assert eventually(lambda: self.held() == sent)

    def held(self, digest: str = "") -> Any:
        whole = digest or content_digest(self.body)
        return self.client._signed("GET", self.target, b"", 0.0, digest=whole).table.get("held")

    def send(self, first: object, body: bytes) -> Reply:
        more, whole = {"Upload-Offset": str(first)}, content_digest(self.body)
        return self.client._signed("PUT", self.target, body, 0.0, more=more, digest=whole)


def test_the_rest_of_an_upload_is_taken_and_the_whole_is_what_was_signed(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sender = Sender(federation, tmp_path, 0)
    assert sender.held() == 0
    sender.break_off(200_000)
    assert sender.held() == 200_000, "it is still there when the connection is gone"
    assert sender.held(content_digest(b"another upload")) == 0
    assert sender.send(200_001, sender.body[200_001:]).status == 503, "there would be a gap"
    assert sender.send("many", sender.body[200_000:]).status == 400
    assert sender.send(200_000, sender.body[200_001:]).status == 400, "one byte is missing"
    sender.break_off(200_000)
    reply = sender.client.upload(sender.target, sender.body)
    assert (reply.status, reply.table["verdict"]) == (200, "accepted")
    told = sender.client._signed("GET", sender.target, b"", 0.0)
    assert told == reply, "asked again, it is told the same"
    assert "Traceback" not in caplog.text, "a device that goes away is no failure"
    assert "ASGI" not in caplog.text


def test_what_was_sent_is_forgotten_with_the_task(federation: Federation, tmp_path: Path) -> None:
    sender = Sender(federation, tmp_path, 1)
    sender.break_off(150_000)
    parts = federation.serving.running._parts
    assert parts.held(1, sender.task.id, content_digest(sender.body))
    sender.client.request("POST", f"/v1/tasks/{sender.task.id}/fail", b"")
    assert eventually(lambda: not parts.held(1, sender.task.id, content_digest(sender.body)))
    assert sender.client._signed("GET", sender.target, b"", 0.0).status == 410


def kept(parts: Parts, device: int, task: int, error: Callable[[], BaseException], first: int = 0) -> bytes:
    """What is held after somebody has sent some bytes and this has happened."""
    with pytest.raises(type(error())), parts.one(device, task, "digest", first) as data:  # noqa: PT012
        data += b"bytes"
        raise error()
    return bytes(parts.held(device, task, "digest"))


def test_parts_are_kept_only_where_a_device_went_away_and_only_so_many() -> None:
    parts = Parts(2)
    assert kept(parts, 0, 7, lambda: Problem(400, "digest", "another body")) == b""
    assert kept(parts, 0, 7, ClientDisconnect) == b"bytes"
    assert kept(parts, 0, 7, ClientDisconnect, first=2) == b"bybytes"
    assert parts.held(0, 8, "digest") == b""
    with parts.one(1, 9, "digest", 0) as older:
        older += b"old"
        with parts.one(1, 9, "digest", 2) as newer:  # the first is not known to be dead yet
            older += b"er"
            newer += b"!"
        assert (bytes(older), bytes(newer)) == (b"older", b"ol!")
    assert kept(parts, 2, 3, ClientDisconnect) == kept(parts, 3, 3, ClientDisconnect) == b"bytes"
    assert parts.held(0, 7, "digest") == b"", "the oldest went first"
    parts.expire({2: 3, 3: 4})
    assert parts.held(2, 3, "digest") == b"bytes"
    assert parts.held(3, 3, "digest") == b""
    assert kept(Parts(0), 0, 7, ClientDisconnect) == b"", "small ones are sent again whole"
