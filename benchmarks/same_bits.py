"""Do two checkouts give the same bits? Short runs of many methods, fleets and workers, with a kill and a resume.

    python benchmarks/same_bits.py . ../before

Each checkout runs them all in a process of its own; a table of digests follows, and the runs that differ are named.
A change of the house must leave every digest alone; a change of a method shows exactly which runs it touches.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

FILES = ("events.jsonl", "metrics.csv", "model.safetensors")
UNSTEADY = {"dropout": 0.15, "availability": 0.7, "cycle": 40.0, "jitter": 0.3, "latency": 0.05}
RUNS: dict[str, dict[str, Any]] = {
    "fedasmu": {"algorithm": {"name": "fedasmu"}},
    "fedasmu, unsteady fleet": {"algorithm": {"name": "fedasmu"}, "fleet": UNSTEADY},
    "fedasmu, two workers": {"algorithm": {"name": "fedasmu"}, "fleet": UNSTEADY, "workers": 2},
    "fedavg": {"algorithm": {"name": "fedavg"}, "fleet": {"availability": 0.6, "cycle": 30.0}},
    "fedavg, one worker": {"algorithm": {"name": "fedavg"}, "fleet": {"dropout": 0.3}, "workers": 1},
    "fedbuff": {"algorithm": {"name": "fedbuff"}, "fleet": UNSTEADY},
    "port": {"algorithm": {"name": "port"}, "fleet": {"slowest_over_fastest": 20.0, "jitter": 0.2}},
    "moon": {"algorithm": {"name": "moon"}, "fleet": {"dropout": 0.1}},
    "feddyn": {"algorithm": {"name": "feddyn"}, "fleet": UNSTEADY},
    "asyncdrop": {"algorithm": {"name": "asyncdrop"}, "fleet": UNSTEADY},
    "ca2fl": {"algorithm": {"name": "ca2fl"}, "fleet": UNSTEADY},
    "asofed": {"algorithm": {"name": "asofed"}, "fleet": {"dropout": 0.2}},
    "fedsa": {"algorithm": {"name": "fedsa"}, "workers": 2},
    "fedasync, only the freshest": {"algorithm": {"name": "fedasync", "max_staleness": 2}, "fleet": UNSTEADY},
    "timing only": {"algorithm": {"name": "fedasmu"}, "fleet": UNSTEADY, "timing_only": True},
}
KILLED = ("fedasmu, two workers", "port", "feddyn", "fedavg")  # these once more: killed at a checkpoint, and resumed


def network() -> nn.Module:
    """With hidden units to drop, features to contrast, and statistics that are no gradient's business."""
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def points() -> Any:
    """Two Gaussian clouds on ten devices of unequal size."""
    from fedasmu import FederatedData

    generator = torch.Generator().manual_seed(7)
    targets = torch.arange(400) % 2
    inputs = torch.randn(400, 20, generator=generator) + (2 * targets[:, None] - 1) * 0.7
    shards = [torch.arange(300)[device::10][: 20 + device] for device in range(10)]
    return FederatedData.of((inputs[:300], targets[:300]), (inputs[300:], targets[300:]), shards)


def settings(name: str) -> dict[str, Any]:
    table = {
        "fleet": {},
        "pacing": {"max_in_flight": 5, "period": 1.0},
        "local": {"epochs": 2, "batch": 15, "lr": 0.1},
        "evaluate": {"every": 5},
        "stop": {"uploads": 100},
        **{key: value for key, value in RUNS[name].items() if key != "workers"},
    }
    table["fleet"] = {"devices": 10, **table["fleet"]}
    return table | ({"data": {"per_device": 20}} if table.get("timing_only") else {})


def run(name: str, out: Path, resume: bool = False, **changes: Any) -> None:
    from fedasmu import Experiment

    table = settings(name) | changes
    data = None if table.get("timing_only") else points()
    Experiment(table, model=network, data=data).run(out, workers=RUNS[name].get("workers", "inline"), resume=resume)


def run_killed(name: str, out: Path) -> None:
    """Kill the run, with all that it started, a little after its first checkpoint; then resume it."""
    command = [sys.executable, __file__, "--one", name, str(out)]
    process = subprocess.Popen(command, start_new_session=True)
    while process.poll() is None and not list(out.glob("checkpoint/*/sha256")):
        time.sleep(0.005)
    time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(name, out, resume=True)


def digest(out: Path) -> str:
    found = [(out / name).read_bytes() for name in FILES if (out / name).exists()]
    return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in found)).hexdigest()[:16]


def digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, name in enumerate(RUNS):
        run(name, folder / str(number))
        found[name] = digest(folder / str(number))
    for name in KILLED:
        run_killed(name, folder / f"killed-{name}")
        found[f"{name}, killed and resumed"] = digest(folder / f"killed-{name}")
    return found


def of_checkout(checkout: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, __file__, "--all"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=checkout)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        run(arguments[1], Path(arguments[2]), checkpoint_seconds=0.05)
        return 0
    if arguments[:1] == ["--all"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(digests(Path(folder))))
        return 0
    ours, *others = [of_checkout(Path(path)) for path in arguments or ["."]]
    for name, value in ours.items():
        print(f"{name:40} {value}  {'  '.join('same' if other[name] == value else other[name] for other in others)}")
    return int(any(other != ours for other in others))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
