"""What the attacks share: a small run with a known answer, processes to end, and one line a case."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedasmu import Experiment, FederatedData
from fedasmu.errors import Interrupted, UserError

torch.set_num_threads(1)
FILES = ("events.jsonl", "metrics.csv", "model.safetensors")
METHODS = ("fedasmu", "ca2fl", "fedavg", "fedbuff", "feddyn", "port", "moon", "asofed")


def points() -> FederatedData:
    """Two clouds of points on ten unequal devices."""
    random = torch.Generator().manual_seed(7)
    targets = torch.arange(400) % 2
    inputs = torch.randn(400, 20, generator=random) + (2 * targets[:, None] - 1) * 0.7
    shards = [torch.arange(300)[device::10][: 20 + device] for device in range(10)]
    return FederatedData.of((inputs[:300], targets[:300]), (inputs[300:], targets[300:]), shards)


def network() -> nn.Module:
    return nn.Linear(20, 2)


def experiment(method: str, uploads: int = 60, **changes: Any) -> Experiment:
    table = {
        "checkpoint_seconds": 0.01,
        "fleet": {"devices": 10, "dropout": 0.05, "jitter": 0.2},
        "pacing": {"max_in_flight": 5, "period": 1.0},
        "local": {"epochs": 2, "batch": 8, "lr": 0.1},
        "algorithm": {"name": method},
        "evaluate": {"every": 5},
        "stop": {"uploads": uploads},
    }
    return Experiment(table | changes, model=network, data=points())


def resumed(directory: Path, say: Callable[[str], None] = lambda line: None, workers: Any = "inline") -> None:
    own: dict[str, Any] = {"model": network, "data": points()}
    Experiment.of_run(directory, **own).run(directory, resume=True, say=say, workers=workers)


def outputs(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


def stopped_at(upload: int) -> Callable[[Any, Any], None]:
    """An observer that asks once, as Ctrl-C does, for a stop."""
    asked: list[bool] = []

    def observe(desk: Any, line: Any) -> None:
        if desk.server.counters.received >= upload and not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGINT)

    return observe


def half(directory: Path, method: str) -> None:
    """A run that was stopped twice, so that it has two checkpoints."""
    for upload in (20, 40):
        try:
            experiment(method).run(directory, resume=upload > 20, observe=stopped_at(upload))
        except Interrupted:
            continue


def in_a_child(work: Callable[[], Any]) -> int:
    """The process id of a fork that does this: exit code 0, 2 for a user's error, 70 for a traceback."""
    if child := os.fork():
        return child
    code = 0
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        work()
    except UserError:
        code = 2
    except BaseException:
        code = 70
    os._exit(code)


@contextmanager
def place() -> Iterator[Path]:
    """In memory where that is possible: hundreds of checkpoints a second would keep a disk busy."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="attack-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Score:
    """Counts what came of the cases, a line each, and ends the script with 1 if anything is as it must not be."""

    def __init__(self, what: str, bad: tuple[str, ...]) -> None:
        self.what, self.bad, self.counts = what, bad, Counter[str]()

    def case(self, name: str, outcome: str) -> None:
        self.counts[outcome] += 1
        print(f"{outcome:<12} {name}", flush=True)

    def end(self) -> None:
        told = ", ".join(f"{outcome} {count}" for outcome, count in sorted(self.counts.items()))
        print(f"{self.what}: {sum(self.counts.values())} cases: {told}", flush=True)
        sys.exit(any(self.counts[outcome] for outcome in self.bad))


def outcome_of(work: Callable[[], Any]) -> str:
    """fine, refused (one message), or a traceback, which is printed."""
    try:
        work()
    except UserError:
        return "refused"
    except Exception:
        traceback.print_exc()
        return "traceback"
    return "fine"


def count(default: int) -> int:
    return int(sys.argv[1]) if len(sys.argv) > 1 else default


def chance(*about: object) -> random.Random:
    """The same cases every time."""
    return random.Random(repr(about))
