"""A served run and its devices, in threads of this process, over real TLS sockets: for tests."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fedasmu.data.federated import FederatedData
from fedasmu.errors import Interrupted
from fedasmu.network.client import Client
from fedasmu.network.device import Device
from fedasmu.network.folder import Folder, Shown
from fedasmu.network.keys import Key
from fedasmu.network.listener import bound
from fedasmu.network.rehearsal import simulated
from fedasmu.network.script import Line
from fedasmu.network.serving import Serving
from fedasmu.run.build import build
from fedasmu.settings.recipe import parse
from helpers.blobs import blobs, settings
from helpers.served import eventually

QUICK = {"poll": 5.0, "offer": 20.0, "lease": 20.0, "gather": 10.0, "per_address": 0}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))


class Federation:
    """The server of a small problem. Start it, add devices, and see what they leave."""

    lines: list[Line] | None = None
    shown: Shown | None = None
    reading: Mapping[str, Any] = MappingProxyType({})  # the recipe's section on data
    linger = 20.0

    def __init__(self, folder: Path, data: FederatedData | None = None, factory: Any = network, **changes: Any) -> None:
        self.data = blobs() if data is None else data
        table = settings(**{"pacing": {"period": 0.02, "max_in_flight": 4}, **changes})
        table["network"] = {**QUICK, **changes.get("network", {})}
        table["data"] = dict(self.reading)
        self.world = build(parse(table), factory, self.data)
        self.path = folder / "run"
        self.states = folder / "devices"
        if not self.path.exists():
            self.path.mkdir(parents=True)
            (self.path / "config.toml").write_text(self.world.config.toml())
            listening = bound("127.0.0.1", 0)
            Folder.make(self.path, len(self.data.shards), "127.0.0.1", listening.getsockname()[1], shown=self.shown)
            listening.close()
        self.folder = Folder(self.path)
        self.devices: list[Device] = []
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self) -> None:
        self.stopping, self.ended = threading.Event(), False
        self.serving = Serving(
            self.world, self.folder, self.folder.context, self.stopping, linger=self.linger, lines=self.lines
        )
        listening = bound("127.0.0.1", self.folder.port)
        self._server = self._thread(lambda: self._serve(listening))

    def _serve(self, listening: Any) -> None:
        folder = Folder(self.path)  # SQLite wants a connection of this thread
        self.serving.folder = folder
        try:
            self.serving.serve(listening)
        except Interrupted:
            pass
        finally:
            listening.close()
            self.ended = True

    def stop(self) -> None:
        self.stopping.set()
        self._server.join(60)

    def failure(self) -> BaseException:
        """What the server ended with, once it has: it may be started again."""
        assert eventually(lambda: self.errors)
        (error,) = self.errors
        self.errors.clear()
        return error

    def device(self, number: int, **options: Any) -> Device:
        indices = self.data.shards[number]
        invite = None if (self.states / str(number) / "server.json").exists() else str(self.folder.invite(seat=number))
        given = {
            "url": self.folder.url,
            "data": lambda: (self.data.train.inputs[indices], self.data.train.targets[indices]),
            "invite": invite,
            "state": self.states / str(number),
            "model": network,
        }
        device = Device(**{**given, **options})
        self.devices.append(device)
        return device

    def work(self, device: Device) -> threading.Thread:
        return self._thread(device.run)

    def run(self) -> None:
        """From the first to the last line, with every device."""
        self.start()
        devices = [self.device(number) for number in range(len(self.data.shards))]
        for device in devices:
            device.join()  # else a short run can be over before the last has come
        for device in devices:
            self.work(device)
        self.wait()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} is still at work"
        if self.errors:
            raise self.errors[0]

    def _thread(self, target: Any) -> threading.Thread:
        def work() -> None:
            try:
                target()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread


def scripted(folder: Path, name: str, **changes: Any) -> Federation:
    """Five devices of a method, to be played in the order of the simulation that is in `folder / "simulated"`."""
    given = {
        "algorithm": {"name": name},
        "fleet": {"devices": 5, "dropout": 0.15, "jitter": 0.3},
        "pacing": {"period": 5.0, "count": 2, "max_in_flight": 3},
        "stop": {"uploads": 16},
    }
    federation = Federation(folder, data=blobs(devices=5), **{**given, **changes})
    federation.lines = simulated(federation.world, folder / "simulated")
    return federation


def enrolled(federation: Federation, folder: Path, seat: int, examples: int) -> Client:
    """A device's client alone, for tests that speak in its place."""
    client = Client(federation.folder.url, Key.at(folder / f"key-{seat}"), [federation.folder.pin()])
    client.enrol(federation.folder.invite(seat=seat), f"device-{seat}", examples)
    client.hello(examples)
    return client
