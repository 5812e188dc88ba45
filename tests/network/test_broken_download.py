"""A model whose sending breaks off: the device asks for the rest only, over real TLS through a proxy that cuts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedasmu import Result
from fedasmu.network import client as clients
from fedasmu.network import wire
from fedasmu.network.client import Client
from fedasmu.network.connection import Cut, Reply
from fedasmu.network.download import Download
from fedasmu.network.keys import Key
from fedasmu.protocol import Model, Task
from helpers.cutting import cutting
from helpers.federation import Federation


def large() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 3000), nn.ReLU(), nn.Linear(3000, 2))  # 276 kB


@pytest.mark.parametrize("name", ["fedasmu", "fedavg"])
def test_a_run_ends_though_no_connection_lasts_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(clients, "FIRST", 0.01)
    stop: dict[str, Any] = {"stop": {"uploads": 3}, "pacing": {"period": 0.02, "max_in_flight": 1, "count": 1}}
    federation = Federation(tmp_path, factory=large, algorithm={"name": name}, network={"gather": 0.0}, **stop)
    federation.start()
    with cutting(federation.folder.port, after=100_000) as proxy:
        device = federation.device(0, url=f"https://127.0.0.1:{proxy.port}", model=large)
        federation.work(device)
        federation.wait()
        assert proxy.cuts >= 3 * 2
    summary = Result(federation.path).summary
    assert (summary["uploads"], summary["lost"]) == (3, 0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    running = Federation(tmp_path_factory.mktemp("run"), stop={"uploads": 1000}, network={"gather": 0.0})
    running.start()
    yield running
    running.stop()


def enrolled(federation: Federation, folder: Path, seat: int) -> tuple[Client, Task]:
    client = Client(federation.folder.url, Key.at(folder / f"key-{seat}"), [federation.folder.pin()])
    client.enrol(federation.folder.invite(seat=seat), f"device-{seat}", len(federation.data.shards[seat]))
    client.hello(len(federation.data.shards[seat]))
    reply = client.request("GET", "/v1/task?wait=20", wait=20.0)
    return client, wire.read_task(reply.body, federation.world.layout.size)


def asked(client: Client, version: int, **headers: str) -> Reply:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return client._signed("GET", f"/v1/models/{version}", b"", 0.0, more=more)


def test_the_rest_of_a_model_is_sent_to_its_holder(federation: Federation, tmp_path: Path) -> None:
    client, task = enrolled(federation, tmp_path, 0)
    whole, mark = bytes(wire.raw(task.model.vector)), f'"{wire.digest(task.model.vector)}"'
    assert asked(client, task.model.version) == Reply(200, whole)
    for first in (1, 100, len(whole) - 1):
        reply = asked(client, task.model.version, Range=f"bytes={first}-", If_Range=mark)
        assert (reply.status, reply.body) == (206, whole[first:])
    assert asked(client, task.model.version, Range="bytes=9-", If_Range='"other"') == Reply(200, whole)
    for unknown in ("bytes=-5", "bytes=0-3,5-9", "lines=1-"):
        assert asked(client, task.model.version, Range=unknown) == Reply(200, whole)


def test_no_more_than_a_model_that_one_has_been_sent(federation: Federation, tmp_path: Path) -> None:
    client, task = enrolled(federation, tmp_path, 1)
    size = len(wire.raw(task.model.vector))
    assert asked(client, task.model.version + 1000).status == 410
    assert asked(client, task.model.version, Range=f"bytes={size}-").status == 416
    client.request("POST", f"/v1/tasks/{task.id}/fail", b"")
    assert asked(client, task.model.version).status == 410


def test_a_device_that_asks_for_the_same_part_without_end_loses_its_task(
    federation: Federation, tmp_path: Path
) -> None:
    client, task = enrolled(federation, tmp_path, 2)
    statuses = [asked(client, task.model.version, Range="bytes=40-").status for _ in range(10)]
    assert statuses.count(206) < 10
    assert statuses[-1] == 410
    assert task.id not in federation.serving.coordinator.server.ledger


def test_what_is_held_is_asked_for_only_where_it_can_be() -> None:
    task = Task(3, 1, Model(7, torch.arange(6.0)), 0.1, 5, {})
    frame, mask = b"".join(wire.task_frame(task)), Task(3, 1, task.model, 0.1, 5, {"mask": torch.ones(6)})
    download, broken = Download(), OSError("cut")
    assert download.rest is None
    download.keep(Cut(200, frame[:10], broken))
    assert download.rest is None, "not even the head has come"
    download.keep(Cut(200, frame[:-10], broken))
    mark = f'"{wire.digest(task.model.vector)}"'
    assert download.rest == ("/v1/models/7", {"Range": "bytes=14-", "If-Range": mark})
    download.keep(Cut(206, frame[-10:-4], broken))
    assert download.rest == ("/v1/models/7", {"Range": "bytes=20-", "If-Range": mark})
    assert download.settled(Reply(503, b"")) == Reply(503, b"")
    assert download.settled(Reply(206, frame[-4:])) == Reply(200, frame)
    assert download.settled(Reply(410, b"")) is None
    assert download.rest is None
    download.keep(Cut(200, b"".join(wire.task_frame(mask))[:-30], broken))
    assert download.rest is None, "the mask is no part of the model"
