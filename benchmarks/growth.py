"""How the time of a run grows with uploads, devices, epochs, the model and the workers: one factor at a time.

    python benchmarks/growth.py [--json]

The run that all others are compared with: FedASMU, LeNet-5, 100 devices of 60 images, 2 epochs with batches of 10, 200
uploads, one worker. Each of the others differs from it in one thing. All take turns; a figure is the median, over the
turns, of the time of the loop over the events divided by that of the first. Start and end of a run are not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from events import timed_loop
from fleets import images

from fedasmu import Experiment
from fedasmu.pools import Workers


@dataclass(frozen=True)
class Run:
    uploads: int = 200
    devices: int = 100
    epochs: int = 2
    examples: int = 60
    model: str = "lenet5"
    workers: Workers = 1
    method: str = "fedasmu"


BASE = Run()
RUNS = {
    "the run itself": BASE,
    "2 times the uploads": replace(BASE, uploads=400),
    "10 times the devices": replace(BASE, devices=1_000),
    "100 times the devices": replace(BASE, devices=10_000),
    "2 times the epochs": replace(BASE, epochs=4),
    "4 times the epochs": replace(BASE, epochs=8),
    "2 times the examples of a device": replace(BASE, examples=120),
    "a model of 8 thousand weights (softmax)": replace(BASE, model="softmax"),
    "a model of 160 thousand weights (MLP)": replace(BASE, model="mlp"),
    "FedAsync in place of FedASMU": replace(BASE, method="fedasync"),
    "no worker, all in one process": replace(BASE, workers="inline"),
    "2 workers": replace(BASE, workers=2),
}


def seconds(run: Run) -> float:
    """Of the loop over the events."""
    table = {
        "model": run.model,
        "fleet": {"devices": run.devices},
        "pacing": {"max_in_flight": 10},
        "local": {"epochs": run.epochs, "batch": 10, "lr": 0.01},
        "algorithm": {"name": run.method},
        "evaluate": {"every": run.uploads},
        "stop": {"uploads": run.uploads},
    }
    with tempfile.TemporaryDirectory() as folder, timed_loop(time.perf_counter) as found:
        Experiment(table, data=images(run.devices, run.examples)).run(Path(folder) / "run", workers=run.workers)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--turns", type=int, default=3, help="how often each is run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = [{name: seconds(run) for name, run in RUNS.items()} for _ in range(arguments.turns)]
    first = next(iter(RUNS))
    found = {name: statistics.median(one[name] / one[first] for one in rounds) for name in RUNS}
    print("| a run with | times as long |\n|---|---|")
    print(f"| {first} | {statistics.median(one[first] for one in rounds):.2f} s |")
    for name in list(RUNS)[1:]:
        print(f"| {name} | {found[name]:.2f} |")
    if arguments.json:
        print(json.dumps({name: round(figure, 3) for name, figure in found.items()}))


if __name__ == "__main__":
    main()
