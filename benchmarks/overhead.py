"""What the simulator costs above the bare training loop: the same SGD steps, both ways, interleaved in one run.

    python benchmarks/overhead.py [--json]

W1: LeNet-5, 600 images a device, 5 epochs, batch 32. W2: 1 epoch, batch 10. A ratio below 1 means that the simulator is
faster than the loop. Both sides use the eager PyTorch engine, one thread a process; the median over the pairs is shown.

w1_seen, w2_seen, events_seen: what letting others read of every event within a second costs: the processor time of a
run's loop beside that of one that writes 500 lines at a time. The last trains nothing: 10,000 uploads of FedAsync.
seconds_until_seen: the longest, in these runs and with two workers, from an event to its line being in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from events import timed_loop
from torch.nn.functional import cross_entropy

from fedasmu import Experiment, FederatedData
from fedasmu.events import Event, Measured
from fedasmu.models import build
from fedasmu.storage.record import Record, _Growing
from fedasmu.system.memory import keep_freed_memory

WORKLOADS = {"w1": {"epochs": 5, "batch": 32, "tasks": 8}, "w2": {"epochs": 1, "batch": 10, "tasks": 24}}
IMAGES, LR = 600, 0.01
NOTHING_TRAINED: dict[str, Any] = {
    "timing_only": True,
    "fleet": {"devices": 1000},
    "algorithm": {"name": "fedasync"},
    "evaluate": {"every": 1000},
    "stop": {"uploads": 10_000},
}


def images(devices: int) -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(devices * IMAGES, 1, 28, 28, generator=generator)
    targets = torch.randint(0, 10, (devices * IMAGES,), generator=generator)
    shards = torch.arange(devices * IMAGES).view(devices, IMAGES)
    return FederatedData.of((inputs, targets), (inputs[:1], targets[:1]), list(shards), classes=10)


def bare_loop(data: FederatedData, epochs: int, batch: int, tasks: int) -> float:
    """What anybody would write: a module, an optimiser, shuffled batches; and a C library that keeps freed memory."""
    keep_freed_memory()
    module = build("lenet5", shape=(1, 28, 28), classes=10, seed=0)
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    inputs, targets = data.train.inputs, data.train.targets
    module.train()
    began = time.perf_counter()
    for task in range(tasks):
        shard = data.shards[task]
        for _ in range(epochs):
            order = shard[torch.randperm(len(shard))]
            for indices in order.split(batch):
                optimiser.zero_grad()
                cross_entropy(module(inputs[indices]), targets[indices]).backward()
                optimiser.step()
    return time.perf_counter() - began


def simulated(data: FederatedData, epochs: int, batch: int, tasks: int, workers: int) -> float:
    """The same number of tasks through the whole simulator: server, clock, workers, run directory, start and end."""
    settings = tasks_of(epochs, batch, tasks)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(settings, data=data)
        began = time.perf_counter()
        experiment.run(Path(folder) / "run", workers=workers)
        return time.perf_counter() - began


def tasks_of(epochs: int, batch: int, tasks: int) -> dict[str, Any]:
    """A recipe for so many tasks, one for each device."""
    return {
        "engine": "torch",
        "model": "lenet5",
        "fleet": {"devices": tasks},
        "pacing": {"max_in_flight": tasks},
        "local": {"epochs": epochs, "batch": batch, "lr": LR},
        "algorithm": {"name": "fedavg"},
        "evaluate": {"every": tasks},
        "stop": {"uploads": tasks},
    }


@contextmanager
def unseen() -> Iterator[None]:
    """Events reach their file many at a time and at the end only."""
    flush = Record.flush
    Record.flush = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Record.flush = flush  # type: ignore[method-assign]


@contextmanager
def ages() -> Iterator[list[float]]:
    """Of the events that each writing brings into the file, how many seconds ago the oldest came to be."""
    write, flush = Record.write, _Growing.flush
    waiting: list[float] = []
    found = [0.0]

    def writing(self: Record, line: Event | Measured) -> None:
        if not isinstance(line, Measured):
            waiting.append(time.monotonic())
        write(self, line)

    def flushing(self: _Growing) -> None:
        flush(self)
        if self.path.name == "events.jsonl" and waiting:
            found.append(time.monotonic() - waiting[0])
            waiting.clear()

    Record.write, _Growing.flush = writing, flushing  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Record.write, _Growing.flush = write, flush  # type: ignore[method-assign]


def loop_seconds(settings: dict[str, Any], data: FederatedData | None) -> float:
    """Of the processor, for a run's loop."""
    with tempfile.TemporaryDirectory() as folder, timed_loop() as found:
        Experiment(settings, data=data).run(Path(folder) / "run", workers="inline")
    return found[0]


def measure_seen(pairs: int) -> dict[str, float]:
    runs: dict[str, tuple[dict[str, Any], FederatedData | None]] = {"events": (NOTHING_TRAINED, None)}
    runs |= {name: (tasks_of(**load), images(load["tasks"])) for name, load in WORKLOADS.items()}
    ratios: dict[str, list[float]] = {}
    for turn in range(pairs):
        for name, run in runs.items():
            seconds = {}
            for way in (nullcontext, unseen) if turn % 2 else (unseen, nullcontext):
                with way():
                    seconds[way] = loop_seconds(*run)
            ratios.setdefault(f"{name}_seen", []).append(seconds[nullcontext] / seconds[unseen])
    with ages() as found, tempfile.TemporaryDirectory() as folder:
        for name, (settings, data) in runs.items():
            Experiment(settings, data=data).run(Path(folder) / name, workers=2 if data else "inline")
    found_ratios = {name: round(statistics.median(values), 4) for name, values in ratios.items()}
    return {**found_ratios, "seconds_until_seen": round(max(found), 3)}


def measure(pairs: int) -> dict[str, float]:
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {}
    for name, load in WORKLOADS.items():
        data = images(load["tasks"])
        bare_loop(data, 1, load["batch"], 2)  # warm up
        for _ in range(pairs):
            bare = bare_loop(data, **load)
            for workers, label in ((1, "one_worker"), (2, "two_workers")):
                ratio = simulated(data, **load, workers=workers) / bare
                ratios.setdefault(f"{name}_{label}", []).append(ratio)
    return {name: round(statistics.median(values), 4) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object of ratios")
    parser.add_argument("--pairs", type=int, default=2, help="how often each comparison is repeated")
    arguments = parser.parse_args()
    ratios, seen = measure(arguments.pairs), measure_seen(arguments.pairs)
    for name, ratio in ratios.items():
        print(f"{name:18} {ratio:.3f} times the bare loop's time")
    for name, figure in seen.items():
        print(f"{name:18} {figure:.3f}")
    if arguments.json:
        print(json.dumps(ratios | seen))


if __name__ == "__main__":
    main()
