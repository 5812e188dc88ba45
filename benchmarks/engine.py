"""The native engine against the bare eager PyTorch loop on one core, in turns, so that both see the same machine.

    python benchmarks/engine.py [--json] [--all]

Each side has a process of its own: in one process the engine's memory would change how the C library serves PyTorch's.
The seconds are of processor time, and the ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu import models
from fedasmu.data.examples import Examples
from fedasmu.engines.native import NativeEngine, Unsupported
from fedasmu.system.memory import keep_freed_memory
from fedasmu.vector import Layout

LR = 0.01
EVALUATION_BATCH = 100  # of the eager loop: the best for it, over these models


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    shape: tuple[int, ...]
    batch: int  # 0: evaluation
    samples: int  # of one measurement
    bar: float | None = None

    def batches(self) -> Sequence[Tensor]:
        return torch.split(torch.arange(self.samples), self.batch or EVALUATION_BATCH)


CASES = (
    Case("lenet_b32", "lenet5", (1, 28, 28), 32, 960, 3.5),
    Case("lenet_b10", "lenet5", (1, 28, 28), 10, 500, 3.0),
    Case("lenet_eval", "lenet5", (1, 28, 28), 0, 2000, 3.0),
    Case("cnn_b32", "cnn", (3, 32, 32), 32, 128, 2.0),
)
OTHERS = (
    Case("lenet_b1", "lenet5", (1, 28, 28), 1, 60),
    Case("lenet_b64", "lenet5", (1, 28, 28), 64, 960),
    Case("cnn_b10", "cnn", (3, 32, 32), 10, 100),
    Case("cnn_eval", "cnn", (3, 32, 32), 0, 200),
    Case("cnn_tf_b32", "cnn_tf", (3, 32, 32), 32, 128),
    Case("cnn_tf_eval", "cnn_tf", (3, 32, 32), 0, 500),
    Case("softmax_b32", "softmax", (561,), 32, 3200),
    Case("softmax_eval", "softmax", (561,), 0, 10_000),
    Case("mlp_b32", "mlp", (1, 28, 28), 32, 1600),
    Case("mlp_b10", "mlp", (1, 28, 28), 10, 500),
    Case("mlp_eval", "mlp", (1, 28, 28), 0, 10_000),
    Case("textcnn_b32", "textcnn", (500,), 32, 64),
    Case("textcnn_eval", "textcnn", (500,), 0, 200),
    Case("resnet20_b32", "resnet20", (3, 32, 32), 32, 64),
    Case("resnet20_eval", "resnet20", (3, 32, 32), 0, 200),
    Case("alexnet_b32", "alexnet", (3, 32, 32), 32, 64),
    Case("vgg11_b32", "vgg11", (3, 32, 32), 32, 32),
)


def examples(case: Case) -> Examples:
    torch.manual_seed(0)
    if case.model == "textcnn":  # rare words and frequent ones, in texts of unequal length
        ranks = (10_000 ** torch.rand(case.samples, *case.shape)).long()
        padded = torch.arange(case.shape[0]) < torch.randint(case.shape[0] - 100, (case.samples, 1))
        return Examples(ranks.masked_fill(padded, 0), torch.randint(10, (case.samples,)))
    inputs = torch.randint(0, 256, (case.samples, *case.shape), dtype=torch.uint8)
    channels = case.shape[0]
    return Examples(inputs, torch.randint(10, (case.samples,)), torch.full((channels,), 1 / 255), torch.zeros(channels))


def eager(
    case: Case, module: nn.Module, data: Examples, order: torch.memory_format = torch.contiguous_format
) -> Callable[[], object]:
    """The loop that every tutorial has, at its best: its batches are made beforehand, and freed memory is kept."""
    keep_freed_memory()
    cut = (data.batch(indices) for indices in case.batches())
    batches = [(inputs.contiguous(memory_format=order), targets) for inputs, targets in cut]
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)

    def train() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def evaluate() -> None:
        with torch.inference_mode():
            for inputs, targets in batches:
                logits = module(inputs)
                cross_entropy(logits, targets, reduction="sum").item()
                (logits.argmax(1) == targets).sum().item()

    return train if case.batch else evaluate


def native(case: Case, module: nn.Module, data: Examples) -> Callable[[], object]:
    layout = Layout.of(module)
    vector = layout.read(module)
    network = NativeEngine(module, layout, case.shape)
    batches = case.batches()
    if case.batch:
        return lambda: network.train(vector, data, batches, LR)
    return lambda: network.evaluate(vector, data)


Side = Callable[[Case, nn.Module, Examples], Callable[[], object]]


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def serve(case: Case, side: Side, pipe: Connection) -> None:
    """Does the work once for each message, and answers how long it took; before all, why it cannot, or None."""
    data = examples(case)
    module = models.build(case.model, shape=case.shape, classes=10, seed=0)
    try:
        work = side(case, module, data)
    except Unsupported as reason:
        pipe.send(str(reason))
        return
    work()
    pipe.send(None)
    while pipe.recv():
        pipe.send(seconds(work))


def turns(case: Case, sides: Sequence[Side], budget: float) -> list[tuple[float, ...]]:
    """The seconds of each side, in turns, so that all see the same machine."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for side in sides:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(case, side, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        if reason := pipe.recv():
            raise Unsupported(reason)
    rounds: list[tuple[float, ...]] = []
    start = time.monotonic()
    while len(rounds) < 5 or time.monotonic() - start < budget:
        rounds.append(tuple(ask(pipe) for pipe in pipes))
    for pipe in pipes:
        pipe.send(False)
    return rounds


def compare(case: Case, budget: float) -> tuple[float, float, float]:
    """Samples a second of the eager loop and of the engine, and the median of their ratio."""
    rounds = turns(case, (native, eager), budget)
    fast, slow = (statistics.median(column) for column in zip(*rounds, strict=True))
    return case.samples / slow, case.samples / fast, statistics.median(b / a for a, b in rounds)


def ask(pipe: Connection) -> float:
    pipe.send(True)
    return float(pipe.recv())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object of ratios")
    parser.add_argument("--all", action="store_true", help="also the other models and batch sizes")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'case':14}{'eager':>10}{'native':>10}{'ratio':>8}{'bar':>6}   (samples a second, one core)")
    ratios = {}
    for case in CASES + (OTHERS if arguments.all else ()):
        try:
            slow, fast, ratio = compare(case, arguments.seconds)
        except Unsupported as reason:
            print(f"{case.name:14}{reason}")
            continue
        ratios[case.name] = round(ratio, 2)
        print(f"{case.name:14}{slow:10,.0f}{fast:10,.0f}{ratio:8.2f}{case.bar or '':>6}", flush=True)
    if arguments.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
