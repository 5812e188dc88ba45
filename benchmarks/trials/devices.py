"""Devices that speak as real ones do and only pretend to train: they send back the model with a little noise."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedasmu.network import client as clients
from fedasmu.network import wire
from fedasmu.network.client import Client, Stopped
from fedasmu.network.connection import Ended, Reply
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key
from fedasmu.protocol import Report, Task
from trials.server import ServerProcess

clients.LONGEST = 2.0  # seconds between two attempts: these devices are in a hurry
EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Habits:
    """How a synthetic device behaves."""

    url: str = ""  # where the server is, if not where it says
    fetch: bool = True  # asks for a fresh model in each task
    rest: float = 0.0  # seconds between two tasks, on average
    beat: float = 0.0  # seconds that a task takes, with a sign of life halfway
    log: Path | None = None  # gets a line for each acknowledged task


def seated(folder: Folder, number: int) -> Key:
    """The key of a device that has this seat. A greeting over the wire is measured elsewhere."""
    key = Key.at(folder.path.parent / f"key-{number}")
    folder.register.enrol(folder.invite(seat=number).id, key.public, f"synthetic-{number}", EXAMPLES)
    return key


def greet(client: Client) -> None:
    """Hello. A server looks a few times a second whether there are new seats, so a new one may have to wait."""
    for _ in range(600):
        try:
            client.hello(EXAMPLES)
            return
        except Ended as ended:
            if ended.code != "unknown":
                raise
        time.sleep(0.1)
    raise RuntimeError("the server does not know this device")


def task_in(reply: Reply) -> Task:
    """The task that a poll was answered with, whatever the size of its model."""
    return wire.read_task(reply.body, len(wire.head(reply.body)[1]) // 4)


class SyntheticDevice(threading.Thread):
    def __init__(self, out: Path, number: int, stopping: threading.Event, habits: Habits) -> None:
        super().__init__(daemon=True)
        folder = Folder(out)
        self.client = Client(habits.url or folder.url, seated(folder, number), [folder.pin()], stopping=stopping)
        self.client.largest = 64 << 20
        folder.register.close()
        self.number, self.stopping, self.habits = number, stopping, habits
        self.acknowledged: dict[int, str] = {}  # task -> verdict
        self.seconds: list[float] = []  # of each upload, to its acknowledgement
        self.repeated = 0
        self.misled = 0  # replies whose staleness is not that of the versions they name
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            greet(self.client)
            while not self.stopping.is_set():
                self._step()
        except (Stopped, Ended):
            pass
        except BaseException as error:
            self.trouble = error
        finally:
            self.client.close()

    def _step(self) -> None:
        reply = self._ask("GET", "/v1/task?wait=10", wait=10.0)
        if reply.status != 200:
            self.stopping.wait(reply.pause)
            return
        self._cycle(task_in(reply))
        if self.habits.rest:
            self.stopping.wait(random.expovariate(1 / self.habits.rest))

    def _cycle(self, task: Task) -> None:
        if self.habits.fetch and self._ask("POST", f"/v1/tasks/{task.id}/fresh?ask=0").status == 410:
            return
        if self.habits.beat:
            self.stopping.wait(self.habits.beat / 2)
            self._ask("POST", f"/v1/tasks/{task.id}/beat")
            self.stopping.wait(self.habits.beat / 2)
        task.model.vector[:64] += torch.randn(64) * 1e-3
        body = wire.report_frame(Report(task.model.vector, EXAMPLES, 0.5), {})
        began = time.monotonic()
        reply = self._ask("PUT", f"/v1/tasks/{task.id}/result", body)
        if reply.status == 200:
            self.seconds.append(time.monotonic() - began)
            self._note(task, reply, body)

    def _note(self, task: Task, reply: Reply, body: bytes) -> None:
        verdict = str(reply.table["verdict"])
        assert self.acknowledged.get(task.id, verdict) == verdict
        self.acknowledged[task.id] = verdict
        if self.habits.log is not None:
            with self.habits.log.open("a") as log:
                log.write(f"{task.id}\n")
        if verdict == "accepted":  # every upload makes a version here
            self.misled += reply.table["staleness"] != reply.table["version"] - task.model.version
        if random.random() < 0.02:  # as after a lost reply
            again = self._ask("PUT", f"/v1/tasks/{task.id}/result", body)
            assert (again.status, again.table) == (200, reply.table)
            self.repeated += 1

    def _ask(self, method: str, target: str, body: bytes = b"", wait: float = 0.0) -> Reply:
        while True:
            reply = self.client.request(method, target, body, wait=wait)
            if reply.status != 401:
                return reply
            self.client.hello(EXAMPLES)


class Fleet:
    """Synthetic devices in threads of this process."""

    def __init__(self, server: ServerProcess, numbers: range, habits: Habits) -> None:
        self.stopping = threading.Event()
        self.devices = [SyntheticDevice(server.out, number, self.stopping, habits) for number in numbers]
        for device in self.devices:
            device.start()

    @property
    def uploads(self) -> int:
        return sum(len(device.acknowledged) for device in self.devices)

    @property
    def acknowledged(self) -> list[int]:
        return [task for device in self.devices for task in device.acknowledged]

    @property
    def waits(self) -> list[float]:
        """Seconds from the first byte of an upload to its acknowledgement, in order of size."""
        return sorted(wait for device in self.devices for wait in device.seconds)

    def wait_for(self, more: int, seconds: float = 120.0) -> None:
        """Until so many more uploads were acknowledged."""
        goal, until = self.uploads + more, time.monotonic() + seconds
        while self.uploads < goal and time.monotonic() < until:
            time.sleep(0.05)

    def rate(self, seconds: float) -> float:
        """Uploads a second, from now on."""
        before, began = self.uploads, time.monotonic()
        time.sleep(seconds)
        return (self.uploads - before) / (time.monotonic() - began)

    def counts(self) -> dict[str, Any]:
        return {
            "repeats_told_the_same": sum(device.repeated for device in self.devices),
            "wrong_staleness": sum(device.misled for device in self.devices),
        }

    def end(self) -> None:
        self.stopping.set()
        for device in self.devices:
            device.join(90)


@contextlib.contextmanager
def fleet_of(server: ServerProcess, devices: int, habits: Habits | None = None) -> Iterator[Fleet]:
    fleet = Fleet(server, range(devices), habits or Habits())
    try:
        yield fleet
    finally:
        fleet.end()
    for device in fleet.devices:
        if device.trouble is not None:
            raise device.trouble
