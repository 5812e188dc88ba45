"""A malicious server: whatever it says, a device trains a built-in model on its own data, or ends with a sentence."""

from __future__ import annotations

import gzip
import json
import math
import resource
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedasmu
from fedasmu.errors import UserError
from fedasmu.network import client as clients
from fedasmu.network import membership, wire
from fedasmu.network.device import Device
from fedasmu.network.keys import Invite, encoded
from fedasmu.network.terms import layout_digest
from fedasmu.protocol import Model, Task
from fedasmu.vector import Layout
from helpers.served import Served, eventually, served

RECIPE = {
    "model": "softmax",
    "algorithm": {"name": "fedavg"},
    "batch": 2,
    "epochs": 1,
    "shape": [4],
    "classes": 2,
    "layout": "",
}
HELLO = {"challenge": "c", "run": "r1", "wire": [wire.VERSION], "fedasmu": fedasmu.__version__}
TASK = b"".join(wire.task_frame(Task(0, 0, Model(1, torch.zeros(10)), 0.1, 7, {}, 1.0)))
NESTED = b"[" * 200_000


class Malice:
    """A server that says what it is told to say: by method and path, a status, a body and more headers."""

    def __init__(self) -> None:
        self.says: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.endless = False
        self.asked: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        name = f"{scope['method']} {scope['path']}"
        self.asked.append(name)
        status, body, headers = self.says.get(name, (204, b"", {}))
        fields = [(key.encode(), value.encode()) for key, value in headers.items()]
        endless = self.endless and name == "GET /v1/task"
        fields += [] if endless else [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        for _ in range(4096 if endless else 0):  # 256 MB, if anybody reads it
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def malice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Malice, Served]]:
    monkeypatch.setattr(clients, "LONGEST", 0.05)
    monkeypatch.setattr(clients, "FIRST", 0.05)
    monkeypatch.setattr(membership, "FIRST_CONTACT", 1.0)
    app = Malice()
    with served(app, tmp_path / "keys") as server:
        yield app, server


def speak(app: Malice, server: Served, *, hello: Any = None, welcome: Any = None, recipe: Any = None) -> None:
    """An honest server's greetings, with these changes."""
    digest = layout_digest(Layout.of(fedasmu.models.build("softmax", shape=(4,), classes=2, seed=0)))
    told = {"device": 0, "name": "d", "visit": "v", "poll": 0.01, "beat": 20.0, "pins": [encoded(server.pin)]}
    told |= {"recipe": {**RECIPE, "layout": digest, **(recipe or {})}, **(welcome or {})}
    app.says["GET /v1/hello"] = 200, json.dumps({**HELLO, **(hello or {})}).encode(), {}
    app.says["POST /v1/enrol"] = 201, b"{}", {}
    app.says["POST /v1/hello"] = 200, json.dumps(told).encode(), {}


def device(server: Served, folder: Path) -> Device:
    own = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    return Device(server.url, lambda: own, invite=str(Invite.new(server.pin)), state=folder / "device")


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "device" not in path.parts}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("name that cannot be", {"hello": {"run": "../../escaped"}}),
        ("name that cannot be", {"hello": {"run": "/etc/x"}}),
        ("name that cannot be", {"hello": {"run": "a" * 200}}),
        ("does not answer as", {"hello": {"run": "a" * 5000}}),
        ("does not answer as", {"hello": {"run": "\ud800"}}),
        ("does not answer as", {"hello": {"challenge": "\ud800"}}),
        ("does not answer as", {"hello": {"wire": 1}}),
        ("takes no code", {"recipe": {"model": "os:system"}}),
        ("takes no code", {"recipe": {"algorithm": {"name": "os:system"}}}),
        ("too large", {"recipe": {"model": "mlp", "options": {"hidden": 1 << 40}}}),
        ("cannot be built here", {"recipe": {"model": "mlp", "options": {"hidden": 1 << 62}}}),
        ("not one that this version knows", {"recipe": {"batch": 1 << 60}}),
        ("not one that this version knows", {"recipe": {"epochs": -1}}),
        ("other parameters here", {"recipe": {"layout": "0" * 64}}),
        ("another language", {"welcome": {"pins": "x"}}),
        ("another language", {"welcome": {"device": [1]}}),
        ("another language", {"welcome": {"device": math.inf}}),
        ("another language", {"welcome": {"visit": "a\r\nb: c"}}),
        ("another language", {"welcome": {"visit": "\u0416"}}),
        ("not one that this version knows", {"recipe": {"shape": [1] * 90}}),
    ],
)
def test_hostile_terms_end_in_a_sentence(
    malice: tuple[Malice, Served], tmp_path: Path, words: str, changes: dict[str, Any]
) -> None:
    app, server = malice
    speak(app, server, **changes)
    before = written(tmp_path)
    with pytest.raises(UserError, match=words):
        device(server, tmp_path).run()
    assert written(tmp_path) == before


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("route", ["GET /v1/hello", "POST /v1/hello"])
def test_answers_nested_without_end_are_no_answers(
    malice: tuple[Malice, Served], tmp_path: Path, route: str, status: int
) -> None:
    app, server = malice
    speak(app, server)
    app.says[route] = status, NESTED, {}
    with pytest.raises(UserError):
        device(server, tmp_path).run()


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b"", {}),
        (200, b"FAS1" + struct.pack("<I", 1 << 31), {}),
        (200, b"FAS1" + struct.pack("<I", len(NESTED)) + NESTED, {}),
        (200, TASK[:-4], {}),
        (200, TASK + bytes(64), {}),
        (200, TASK.replace(b'"lr":0.1', b'"lr":1e999'), {}),
        (200, gzip.compress(bytes(64 << 20)), {"content-encoding": "gzip"}),  # nobody unpacks it
    ],
)
def test_a_task_that_is_none_ends_in_a_sentence(
    malice: tuple[Malice, Served], tmp_path: Path, status: int, body: bytes, headers: dict[str, str]
) -> None:
    app, server = malice
    speak(app, server)
    app.says["GET /v1/task"] = status, body, headers
    with pytest.raises(UserError, match="no model for this device"):
        device(server, tmp_path).run()


def test_a_redirect_is_not_followed_and_no_pause_is_longer_than_it_may_be(
    malice: tuple[Malice, Served], tmp_path: Path
) -> None:
    app, server = malice
    speak(app, server, welcome={"poll": float("nan"), "beat": -1e300})
    app.says["GET /v1/task"] = 307, b"", {"location": "/elsewhere"}
    working = device(server, tmp_path)
    thread = threading.Thread(target=working.run)
    thread.start()
    assert eventually(lambda: app.asked.count("GET /v1/task") >= 3)
    working.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert "GET /elsewhere" not in app.asked


def test_a_reply_without_end_is_not_kept(malice: tuple[Malice, Served], tmp_path: Path) -> None:
    app, server = malice
    speak(app, server)
    app.endless = True
    app.says["GET /v1/task"] = 200, b"", {}
    working = device(server, tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thread = threading.Thread(target=working.run)
    thread.start()
    assert eventually(lambda: app.asked.count("GET /v1/task") >= 3)
    working.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
