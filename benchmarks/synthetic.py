"""A server process and devices that only pretend to train: what benchmarks/network.py is made of."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fedasmu.network import client as clients
from fedasmu.network import wire
from fedasmu.network.client import Client, Stopped
from fedasmu.network.connection import Ended
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key
from fedasmu.protocol import Report

FOREVER = 10**9
clients.LONGEST = 2.0  # seconds between two attempts: these devices are in a hurry
QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class ServerProcess:
    """`fedasmu serve` of a LeNet, in a folder; killed and started again as one likes."""

    def __init__(self, out: Path, devices: int, method: str = "fedasync", settings: Sequence[str] = ()) -> None:
        self.out, self.devices = out, devices
        changes = {
            "fleet.devices": devices,
            "data.min_samples": 1,
            "algorithm.name": method,
            "pacing.period": 0.001,
            "pacing.count": devices,
            "pacing.max_in_flight": devices,
            "stop.uploads": FOREVER,
            "evaluate.every": FOREVER,
            "checkpoint_seconds": 5,
            "network.gather": 0,
            "network.per_address": 0,
            "network.keep": "all",
        }
        options = [f"{key}={value}" for key, value in changes.items()] + list(settings)
        self._new = ["quickstart", "--listen", "127.0.0.1:0", "--out", str(out)]
        self._new += [part for option in options for part in ("--set", option)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> float:
        """Seconds until it answers."""
        began = time.monotonic()
        arguments = ["--resume", str(self.out)] if (self.out / "network.json").exists() else self._new
        command = [sys.executable, "-m", "fedasmu", "serve", *arguments]
        log = (self.out.parent / f"{self.out.name}.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **QUIET, **environment})
        log.close()
        while not self._answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.log()[-2000:]}")
            if time.monotonic() - began > 120:
                raise RuntimeError("the server does not answer")
            time.sleep(0.02)
        return time.monotonic() - began

    def _answers(self) -> bool:
        if not (self.out / "network.json").exists():
            return False
        folder = Folder(self.out)
        client = Client(folder.url, Key.at(self.out.parent / "prober"), [folder.pin()])
        try:
            reply = client.once("GET", "/healthz")
            return reply is not None and reply.status == 200
        finally:
            client.close()

    def log(self) -> str:
        return (self.out.parent / f"{self.out.name}.log").read_text(errors="replace")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> tuple[int, float]:
        """The exit code after SIGTERM, and how long it took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        return code, time.monotonic() - began

    def memory(self) -> float:
        """Resident megabytes."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0


class SyntheticDevice(threading.Thread):
    """Speaks like a device, and sends back the model it was sent with a little noise."""

    def __init__(self, out: Path, number: int, stopping: threading.Event, url: str = "", fetch: bool = True) -> None:
        super().__init__(daemon=True)
        folder = Folder(out)
        key = Key.at(out.parent / f"key-{number}")
        self.client = Client(url or folder.url, key, [folder.pin()], stopping=stopping)
        self._invite = folder.invite(seat=number) if key.public not in {s.key for s in folder.register.all()} else None
        folder.register.close()
        self.number, self.stopping, self.fetch = number, stopping, fetch
        self.acknowledged: dict[int, str] = {}  # task -> verdict
        self.seconds: list[float] = []  # of each upload, to its acknowledgement
        self.repeated = 0
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            self._live()
        except (Stopped, Ended):
            pass
        except BaseException as error:
            self.trouble = error
        finally:
            self.client.close()

    def _live(self) -> None:
        if self._invite is not None:
            self.client.enrol(self._invite, f"synthetic-{self.number}", 10)
        self._size = 0
        self.client.largest = 64 << 20
        self.client.hello(10)
        while not self.stopping.is_set():
            reply = self._ask("GET", "/v1/task?wait=10", wait=10.0)
            if reply.status != 200:
                self.stopping.wait(reply.pause)
                continue
            _, rest = wire.head(reply.body)
            self._size = self._size or len(rest) // 4
            self._cycle(wire.read_task(reply.body, self._size))

    def _cycle(self, task: object) -> None:
        vector = task.model.vector  # type: ignore[attr-defined]
        number = task.id  # type: ignore[attr-defined]
        if self.fetch and self._ask("POST", f"/v1/tasks/{number}/fresh?ask=0").status == 410:
            return
        noise = torch.randn(64) * 1e-3
        vector[:64] += noise
        body = wire.report_frame(Report(vector, 10, 0.5), {})
        began = time.monotonic()
        reply = self._ask("PUT", f"/v1/tasks/{number}/result", body)
        if reply.status == 200:
            self.seconds.append(time.monotonic() - began)
            verdict = str(reply.table["verdict"])
            assert self.acknowledged.get(number, verdict) == verdict
            self.acknowledged[number] = verdict
            if random.random() < 0.02:  # as after a lost reply
                again = self._ask("PUT", f"/v1/tasks/{number}/result", body)
                assert (again.status, again.table) == (200, reply.table)
                self.repeated += 1

    def _ask(self, method: str, target: str, body: bytes = b"", wait: float = 0.0):  # type: ignore[no-untyped-def]
        while True:
            reply = self.client.request(method, target, body, wait=wait)
            if reply.status != 401:
                return reply
            self.client.hello(10)


def acts_of(out: Path) -> list[tuple[int, object]]:
    """Everything in the ledger of a server that is not running."""
    from fedasmu.network.ledger import Ledger

    ledger = Ledger(out / "ledger", Folder(out).table)
    try:
        return list(ledger.replay(0))
    finally:
        ledger.close()
