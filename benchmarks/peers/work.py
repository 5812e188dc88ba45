"""The work that every contender does, and how it tells of it. It needs torch alone: each peer's environment has that.

Images like Fashion-MNIST's on 100 devices of 600, ten of them a round, LeNet-5, plain SGD, no evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

DEVICES, COHORT, LR = 100, 10, 0.01


@dataclass(frozen=True)
class Workload:
    epochs: int
    batch: int
    images: int = 600  # of a device

    @property
    def steps(self) -> int:
        """Of one device in one round."""
        return self.epochs * -(-self.images // self.batch)

    @property
    def samples(self) -> int:
        """Of all devices in one round."""
        return COHORT * self.epochs * self.images


WORKLOADS = {"w1": Workload(5, 32), "w2": Workload(1, 10)}


@dataclass(frozen=True)
class Order:
    """What the command line asks of a script."""

    load: Workload
    rounds: int
    workers: int
    method: str
    engine: str
    report: str  # a file, for `Told`


def order() -> Order:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKLOADS, default="w1")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--method", choices=["fedavg", "fedbuff"], default="fedavg")
    parser.add_argument("--engine", default="")
    parser.add_argument("--report", default="/dev/stdout")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = replace(WORKLOADS[given.work], images=given.images)
    return Order(load, given.rounds, given.workers, given.method, given.engine, given.report)


def lenet5() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


@lru_cache(maxsize=1)
def images(each: int) -> tuple[Tensor, Tensor]:
    """All devices' images and labels, the first device's first; drawn once in a process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(DEVICES * each, 1, 28, 28, generator=generator)
    return inputs, torch.randint(0, 10, (DEVICES * each,), generator=generator)


def shard(device: int, each: int) -> tuple[Tensor, Tensor]:
    inputs, targets = images(each)
    own = slice(device * each, (device + 1) * each)
    return inputs[own], targets[own]


class Told:
    """A line of JSON for each round's end and each number of steps, from whichever process they are in."""

    def __init__(self, path: str) -> None:
        self._path = path

    def round(self) -> None:
        self._line({"round": time.monotonic()})

    def steps(self, count: int) -> None:
        self._line({"steps": count})

    def _line(self, content: dict[str, float]) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (json.dumps(content) + "\n").encode())
        os.close(file)


class StepCount:
    """Counts the steps of every optimiser of this process, whoever makes it."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._add)

    def _add(self, *_: object) -> None:
        self.count += 1
