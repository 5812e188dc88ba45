"""What a Ray cluster costs above worker processes, with both on this machine.

    python benchmarks/cluster.py [--json]

lenet5, resnet20: the time of the same run with two workers of Ray over that with two local processes, start excluded.
fed_*: how many trainings a second one driver can hand out and take back when they take no time, with vectors of that
model's size; times the seconds that one training takes, this is how many processors a driver keeps busy.
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
from workers import images, settings

from fedasmu import Experiment, FederatedData
from fedasmu.pools import Job, Pool, Site, cluster, processes, timing_only
from fedasmu.protocol import Train

SIZES = {"lenet5": 61_706, "resnet20": 272_474, "vgg11": 9_750_922}  # numbers in a vector


class Timed:
    """Makes a pool, and waits until it has started before the run begins."""

    def __init__(self, where: str) -> None:
        self.where, self.began = where, 0.0

    def __call__(self, site: Site) -> Pool:
        pool = processes(site, 2) if self.where == "processes" else cluster(site, self.where)
        warm_up(pool)
        self.began = time.perf_counter()
        return pool


def warm_up(pool: Pool) -> None:
    tickets = [pool.submit(Job(Train(torch.zeros(8), range(0), 0.0), 0, 0, 0), 0.0) for _ in range(8)]
    for ticket in tickets:
        pool.cancel(ticket)
    time.sleep(5.0)


def seconds(table: dict[str, Any], data: FederatedData, where: str) -> float:
    timed = Timed(where)
    with tempfile.TemporaryDirectory() as folder:
        Experiment(table, data=data).run(Path(folder) / "run", workers=timed)
    return time.perf_counter() - timed.began


def overhead(model: str, images_each: int, shape: tuple[int, ...], uploads: int, pairs: int) -> float:
    data, table = images(20, images_each, shape, 100), settings(model, 20, 5, uploads, uploads)
    table["pacing"] = {"max_in_flight": 10}
    ratios = [seconds(table, data, "ray") / seconds(table, data, "processes") for _ in range(pairs)]
    return statistics.median(ratios)


def fed(size: int, count: int) -> float:
    """Trainings a second."""
    pool = cluster(Site(timing_only, 4 * size, computes_here=False), "ray")
    vectors = [torch.full((size,), float(number)) for number in range(4)]
    pool.result(pool.submit(Job(Train(vectors[0], range(1), 0.1), 0, 0, 0), 0.0))
    began = time.perf_counter()
    tickets = [pool.submit(Job(Train(vectors[one % 4], range(1), 0.1), 0, 0, 0), float(one)) for one in range(count)]
    for ticket in tickets:
        pool.result(ticket)
    rate = count / (time.perf_counter() - began)
    pool.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--pairs", type=int, default=2, help="how often each comparison is repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "lenet5": overhead("lenet5", 600, (1, 28, 28), 60, arguments.pairs),
        "resnet20": overhead("resnet20", 64, (3, 32, 32), 20, arguments.pairs),
        **{f"fed_{name}": fed(size, 20 if name == "vgg11" else 300) for name, size in SIZES.items()},
    }
    for name, figure in figures.items():
        print(f"{name:14} {figure:.3f}")
    if arguments.json:
        print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
