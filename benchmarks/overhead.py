"""What the simulator costs above the bare training loop: the same SGD steps, both ways, interleaved in one run.

    python benchmarks/overhead.py [--json]

W1: LeNet-5, 600 images a device, 5 epochs, batch 32. W2: 1 epoch, batch 10. A ratio below 1 means that the simulator is
faster than the loop. Both sides use the eager PyTorch engine, one thread a process; the median over the pairs is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedasmu import Experiment, FederatedData
from fedasmu.memory import keep_freed_memory
from fedasmu.models import build

WORKLOADS = {"w1": {"epochs": 5, "batch": 32, "tasks": 8}, "w2": {"epochs": 1, "batch": 10, "tasks": 24}}
IMAGES, LR = 600, 0.01


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
    settings: dict[str, Any] = {
        "engine": "torch",
        "model": "lenet5",
        "fleet": {"devices": tasks},
        "pacing": {"max_in_flight": tasks},
        "local": {"epochs": epochs, "batch": batch, "lr": LR},
        "algorithm": {"name": "fedavg"},
        "evaluate": {"every": tasks},
        "stop": {"uploads": tasks},
    }
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(settings, data=data)
        began = time.perf_counter()
        experiment.run(Path(folder) / "run", workers=workers)
        return time.perf_counter() - began


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
    ratios = measure(arguments.pairs)
    for name, ratio in ratios.items():
        print(f"{name:16} {ratio:.3f} times the bare loop's time")
    if arguments.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
