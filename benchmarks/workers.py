"""Whether worker processes are always fed, and what large vectors cost.

    python benchmarks/workers.py [--json]

busy_*: the share of the workers' time that they spend computing, from the first computation to the last. LeNet-5,
FedASMU, 100 devices of 600 images, evaluations included. The rest is waiting for the process that simulates.
tiny_shards: the time of a run with two workers over one with all in this process, 10,000 devices of 6 images each.
vgg_down, vgg_up: model-sized copies between processes for one task of FedASMU, in each direction.
vgg_receive_ms: what an upload of VGG-11 costs the server, in milliseconds (median), while two workers compute.
vgg_receive_alone_ms: the same without workers, each upload with a merge.
vgg_peak_mb: the most memory that all processes of that run had at one moment; what they share is counted once.
On a machine that others use too, the shares are too low and the times too high.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedasmu import Experiment, FederatedData
from fedasmu.algorithms import Federation, Pace
from fedasmu.algorithms.fedasmu import FedASMU
from fedasmu.events import Verdict
from fedasmu.models import build
from fedasmu.pools import Pool, Site, processes
from fedasmu.pools.arena import Arena
from fedasmu.protocol import Model, Report
from fedasmu.roster import Member, Roster, Seconds
from fedasmu.server.core import Server
from fedasmu.storage.shelf import Shelf
from fedasmu.system.memory import keep_freed_memory
from fedasmu.vector import Layout

# Where runs leave their files: in memory, if possible. A disk's own mood is larger than what is measured here.
QUIET_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None


def images(devices: int, each: int, shape: tuple[int, ...], tests: int) -> FederatedData:
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, *shape, generator=generator), torch.randint(0, 10, (count,), generator=generator)

    shards = list(torch.arange(devices * each).view(devices, each))
    return FederatedData.of(drawn(devices * each), drawn(tests), shards, classes=10)


def settings(model: str, devices: int, epochs: int, uploads: int, every: int, **own: Any) -> dict[str, Any]:
    return {
        "model": model,
        "fleet": {"devices": devices},
        "local": {"epochs": epochs, "batch": 32, "lr": 0.01},
        "algorithm": {"name": "fedasmu"},
        "evaluate": {"every": every},
        "stop": {"uploads": uploads},
        **own,
    }


def timed_run(table: dict[str, Any], data: FederatedData, workers: Any) -> float:
    with tempfile.TemporaryDirectory(dir=QUIET_DISK) as folder:
        began = time.perf_counter()
        Experiment(table, data=data).run(Path(folder) / "run", workers=workers)
        return time.perf_counter() - began


class Stopwatch:
    """Makes a pool whose computations are timed, in whichever process they run."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.computing = multiprocessing.Value("d", 0.0)
        self.first = multiprocessing.Value("d", 0.0)
        self.last = multiprocessing.Value("d", 0.0)

    def __call__(self, site: Site) -> Pool:
        def perform(command: Any, device: int, seed: int) -> Any:
            began = time.monotonic()
            answer = site.perform(command, device, seed)
            ended = time.monotonic()
            with self.computing.get_lock():
                self.first.value = self.first.value or began
                self.computing.value += ended - began
                self.last.value = ended
            return answer

        return processes(replace(site, perform=perform), self.workers)

    @property
    def share(self) -> float:
        return self.computing.value / (self.workers * (self.last.value - self.first.value))


def busy(workers: int, uploads: int) -> float:
    watch = Stopwatch(workers)
    timed_run(settings("lenet5", 100, 5, uploads, 10), images(100, 600, (1, 28, 28), 10_000), watch)
    return watch.share


def tiny_shards(uploads: int) -> float:
    data, table = images(10_000, 6, (1, 28, 28), 100), settings("lenet5", 10_000, 1, uploads, uploads // 4)
    turns = [[timed_run(table, data, who) for who in ("inline", 2)] for _ in range(3)]
    return statistics.median(two / inline for inline, two in turns)


def large_vectors(uploads: int) -> dict[str, float]:
    """VGG-11 with few images: it is the vectors that count."""
    copied, adopted, received = [], [], []
    write, adopt, receive = Arena.write, Arena.adopt, Server.receive

    def timed(self: Server, *arguments: Any) -> Any:
        began = time.perf_counter()
        decision = receive(self, *arguments)
        received.append(1000 * (time.perf_counter() - began))
        return decision

    Arena.write = lambda self, *rest: (copied.append(1), write(self, *rest))[1]  # type: ignore[method-assign]
    Arena.adopt = lambda self, *rest: (adopted.append(1), adopt(self, *rest))[1]  # type: ignore[method-assign]
    Server.receive = timed  # type: ignore[method-assign]
    weight = Weight()
    weight.start()
    try:
        timed_run(settings("vgg11", 20, 1, uploads, uploads), images(20, 64, (3, 32, 32), 10), 2)
    finally:
        Arena.write, Arena.adopt, Server.receive = write, adopt, receive  # type: ignore[method-assign]
        peak = weight.stop()
    tasks = len(received)
    return {
        "vgg_down": len(copied) / tasks,
        "vgg_up": len(adopted) / tasks,
        "vgg_receive_ms": statistics.median(received[tasks // 3 :]),
        "vgg_receive_alone_ms": receive_alone(uploads),
        "vgg_peak_mb": peak,
    }


def receive_alone(uploads: int) -> float:
    """Milliseconds that FedASMU's server takes for an upload of VGG-11's size."""
    keep_freed_memory()
    module = build("vgg11", shape=(3, 32, 32), classes=10, seed=0)
    layout, method, taken = Layout.of(module), FedASMU(), []
    with tempfile.TemporaryDirectory() as folder:
        roster = Roster(Member(100, Seconds(1.0, 1.0, 1.0)) for _ in range(2))
        sizes: dict[str, Any] = {"limit": 2, "budget": uploads, "batch": 10, "epochs": 2}
        federation = Federation(seed=0, roster=roster, layout=layout, shelf=Shelf(Path(folder)), **sizes)
        first = Model(0, layout.read(module))
        server = Server(first, method.schedule(Pace(2, 2)), method.aggregator(federation), 2, 0, lambda _: 0.01)
        for number in range(uploads):
            (task,) = server.start([number % 2])
            server.model = Model(server.model.version + 1, server.model.vector)  # something newer, to merge
            server.fetch(task.id, task.device)
            note = {"beta": 0.2, "merged_after": 5, "slot": 5, "reward": 0.1}
            report = Report(task.model.vector + 1e-3, 100, 0.5, note)
            began = time.perf_counter()
            decision = server.receive(task.id, task.device, report)
            taken.append(1000 * (time.perf_counter() - began))
            assert decision.verdict is Verdict.ACCEPTED
    return statistics.median(taken[uploads // 3 :])


class Weight(threading.Thread):
    """Looks twenty times a second what this process and its children weigh together, in megabytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._over = 0.0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            self.peak = max(self.peak, sum(_megabytes(process) for process in ("self", *children)))

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.peak


def _megabytes(process: str) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--budget", type=float, default=1.0, metavar="FACTOR", help="so many times the usual work")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    uploads = round(200 * arguments.budget)
    figures = {
        "busy_one_worker": busy(1, uploads // 2),
        "busy_two_workers": busy(2, uploads),
        "tiny_shards": tiny_shards(50 * uploads),
        **large_vectors(max(uploads // 5, 20)),
    }
    for name, figure in figures.items():
        print(f"{name:18} {figure:.3f}")
    if arguments.json:
        print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
