"""`fedasmu serve` as a process of its own, killed, stopped and started again as one likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedasmu.network.client import Client
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key

FOREVER = 10**9
QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
TICKS = os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """Fashion-MNIST in a folder: uploads without end, and no evaluation, which would be measured too."""

    def __init__(
        self,
        out: Path,
        devices: int,
        settings: Sequence[str] = (),
        model: str = "lenet5",
        listen: str = "127.0.0.1:0",
        within: Sequence[str] = (),  # a command that runs it, such as one that enters a network namespace
    ) -> None:
        self.out, self.devices, self._within = out, devices, within
        changes = {
            "fleet.devices": devices,
            "data.min_samples": 1,
            "algorithm.name": "fedasync",
            "pacing.period": 0.001,
            "pacing.count": devices,
            "pacing.max_in_flight": devices,
            "stop.uploads": FOREVER,
            "evaluate.every": FOREVER,
            "checkpoint_seconds": 5,
            "network.gather": 0,
            "network.per_address": 0,
            "network.keep": "all",
            "model.name": model,
            **({"model.pad": 2} if model == "lenet5" else {}),  # the usual LeNet: 61,706 weights, 247 kB
        }
        options = [f"{key}={value}" for key, value in changes.items()] + list(settings)
        self._new = ["quickstart", "--listen", listen, "--out", str(out)]
        self._new += [part for option in options for part in ("--set", option)]
        self.process: subprocess.Popen[bytes] | None = None
        self._prober: Client | None = None

    def start(self, **environment: str) -> float:
        """Seconds until it answers."""
        began = time.monotonic()
        arguments = ["--resume", str(self.out)] if (self.out / "network.json").exists() else self._new
        command = [*self._within, sys.executable, "-m", "fedasmu", "serve", *arguments]
        with (self.out.parent / f"{self.out.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **QUIET, **environment})
        while not self._answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.log()[-2000:]}")
            if time.monotonic() - began > 120:
                raise RuntimeError("the server does not answer")
            time.sleep(0.02)
        return time.monotonic() - began

    def _answers(self) -> bool:
        if self._prober is None:
            if not (self.out / "network.json").exists():
                return False
            folder = Folder(self.out)
            self._prober = Client(folder.url, Key.at(self.out.parent / "prober"), [folder.pin()])
            folder.register.close()
        reply = self._prober.once("GET", "/healthz")
        return reply is not None and reply.status == 200

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return (self.out.parent / f"{self.out.name}.log").read_text(errors="replace")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> tuple[int, float]:
        """The exit code after SIGTERM, and how long it took."""
        assert self.process is not None
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        code = self.process.wait(60)
        return code, time.monotonic() - began

    def memory(self) -> float:
        """Resident megabytes."""
        return self._status("VmRSS") / 1024

    def threads(self) -> int:
        return self._status("Threads")

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def seconds(self) -> float:
        """Of the processor, used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))
