"""A step of every model of the paper on one core: what a run gets, against the bare eager loop at its best.

    python benchmarks/models.py [--json] [--seconds N] [--engine torch]

Three sides take turns, each in a process of its own: `ours` is the engine that `engine = "auto"` chooses, or PyTorch's
if asked for; `eager` is the loop that every tutorial has; `channels_last` is that loop on images pixel by pixel. For
all of them the C library keeps freed memory; the loops' batches are scaled beforehand. Milliseconds are of processor
time, medians over the turns; a ratio is the median over the turns of eager / ours, and `best` is the lower one of that
and of channels_last / ours: at least 0.98 says that neither loop is more than 2 % faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial

import torch
from engine import LR, Case, eager, turns
from torch import nn

from fedasmu.data.examples import Examples
from fedasmu.engines.contract import Engine, native_engine
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.system.memory import keep_freed_memory
from fedasmu.vector import Layout

MODELS = {"lenet5": (1, 28, 28), "cnn": (3, 32, 32), "resnet20": (3, 32, 32), "alexnet": (3, 32, 32),
          "vgg11": (3, 32, 32), "textcnn": (500,)}  # fmt: skip
STEPS = {"lenet5": 20, "cnn": 8, "resnet20": 4, "alexnet": 4, "vgg11": 4, "textcnn": 2}  # in one measurement
BATCHES = (10, 32, 64)
BARS = {"resnet20_b64": 1.7, "alexnet_b64": 1.6, "vgg11_b64": 1.25}
LOWEST = 0.98  # of all others


def ours(case: Case, module: nn.Module, data: Examples, engine: str = "auto") -> Callable[[], object]:
    keep_freed_memory()  # as every run does
    layout = Layout.of(module)
    vector, batches = layout.read(module), case.batches()
    network, _ = native_engine(engine, module, layout, case.shape, case.batch, "cpu")
    chosen: Engine = network or TorchEngine(module, layout, torch.device("cpu"), batch=case.batch)
    return lambda: chosen.train(vector, data, batches, LR)


def channels_last(case: Case, module: nn.Module, data: Examples) -> Callable[[], object]:
    order = torch.channels_last if len(case.shape) == 3 else torch.contiguous_format
    return eager(case, module.to(memory_format=order), data, order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one JSON object of ratios")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--engine", choices=("auto", "torch"), default="auto", help="of our side")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help="these models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = f"{'case':16}{'ours':>9}{'eager':>9}{'channels_last':>15}{'ratio':>8}{'bar':>7}{'best':>7}"
    print(f"{columns}   (ms a step, one core)")
    ratios = {}
    for model in arguments.only:
        for batch in BATCHES:
            steps = STEPS[model] * (3 if batch == 10 else 1)  # a task has many more
            name = f"{model}_b{batch}"
            case = Case(name, model, MODELS[model], batch, steps * batch)
            rounds = turns(case, (partial(ours, engine=arguments.engine), eager, channels_last), arguments.seconds)
            times = [1000 * statistics.median(column) / steps for column in zip(*rounds, strict=True)]
            plain, turned = (statistics.median(turn[side] / turn[0] for turn in rounds) for side in (1, 2))
            found = {name: plain, f"{name}_best": min(plain, turned)}
            ratios |= {key: round(ratio, 3) for key, ratio in found.items()}
            shown = f"{name:16}{times[0]:9.2f}{times[1]:9.2f}{times[2]:15.2f}{plain:8.2f}"
            print(f"{shown}{BARS.get(name, LOWEST):7}{min(plain, turned):7.2f}", flush=True)
    if arguments.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
