"""The same federated training in fedasmu and in four other frameworks, side by side on this machine.

    python benchmarks/peers/run.py [--only flower,pfl] [--times 3] [--workload w1] [--json]

Every framework gets an environment of its own under --cache, and does what work.py says: W1 is 5 epochs with batches of
32, W2 one epoch with batches of 10. They take turns, each --times over; the medians are shown. One thread of torch a
process. Every run's steps of SGD are counted and must be those of the work.

samples/s: of training, from the end of the first round to the end of the last.
start-up s: from the command to the end of the first round.
memory MB: the most that all its processes had together (proportional set size, looked at twice a second).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from environment import HERE, python_of
from processes import Tree
from work import COHORT, WORKLOADS, Workload

OURS = "fedasmu"
PEERS = ("flower", "pfl", "flgo", "fedlab")
FIELDS = ("samples/s", "start-up s", "memory MB")


@dataclass(frozen=True)
class Contender:
    framework: str
    workers: int
    method: str = "fedavg"
    engine: str = ""

    @property
    def name(self) -> str:
        return f"{self.framework}{f' ({self.engine})' if self.engine else ''}, {self.workers}"


FEDAVG = [
    *(Contender(OURS, workers, engine=engine) for engine in ("native", "torch") for workers in (1, 2)),
    *(Contender(peer, workers) for peer in ("flower", "pfl", "flgo") for workers in (1, 2)),
    Contender("fedlab", 1),
]
FEDBUFF = [*(Contender(OURS, 1, "fedbuff", engine) for engine in ("native", "torch")), Contender("flgo", 1, "fedbuff")]


class Figures(NamedTuple):
    rate: float
    start: float
    memory: float


class Failed(Exception):
    """A contender did not do the work."""


def run(contender: Contender, python: Path, options: list[str], load: Workload, rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [str(python), str(HERE / f"with_{contender.framework}.py"), "--report", str(report), *options]
        command += ["--workers", str(contender.workers), "--method", contender.method, "--engine", contender.engine]
        began = time.monotonic()
        lines = told(command, report, Path(folder) / "output")
        check(contender, lines, load, rounds)
        ends = [line["round"] for line in lines[:-1] if "round" in line]
        rate = load.samples * (len(ends) - 1) / (ends[-1] - ends[0])
        return Figures(rate, ends[0] - began, lines[-1]["peak"] / 1e6)


def told(command: list[str], report: Path, output: Path) -> list[dict[str, float]]:
    """What the script reported, and then the peak of its memory."""
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | quiet)
        tree = Tree(process.pid)
        try:
            code = process.wait()
        finally:
            tree.end()
    if code:
        raise Failed(f"{' '.join(command)}: ended with {code}\n{output.read_text(errors='replace')[-2000:]}")
    return [*map(json.loads, report.read_text().splitlines()), {"peak": tree.peak}]


def check(contender: Contender, lines: list[dict[str, float]], load: Workload, rounds: int) -> None:
    """Whether it did the work. Ours has engines that are no optimisers of torch's; what they do is tested elsewhere."""
    ended, steps = sum("round" in line for line in lines), sum(line.get("steps", 0) for line in lines)
    wanted = rounds * COHORT * load.steps
    enough = steps >= wanted if contender.method == "fedbuff" else steps == wanted
    if ended != rounds or not (enough or contender.framework == OURS):
        raise Failed(f"{contender.name}: {ended} rounds of {rounds}, {steps:g} steps of {wanted}")


def table(figures: dict[str, list[Figures]]) -> dict[str, dict[str, float]]:
    """The medians of each contender."""
    columns = {name: zip(*each, strict=True) for name, each in figures.items()}
    return {name: dict(zip(FIELDS, map(statistics.median, column), strict=True)) for name, column in columns.items()}


def show(title: str, medians: dict[str, dict[str, float]]) -> None:
    print(f"\n| {title}, processes | {' | '.join(FIELDS)} |\n|---|---|---|---|")
    for name, row in medians.items():
        rate, start, memory = row.values()
        print(f"| {name} | {rate:,.0f} | {start:.1f} | {memory:,.0f} |")


def measure(contenders: list[Contender], given: argparse.Namespace, work: str) -> dict[str, list[Figures]]:
    options = ["--work", work, "--images", str(given.images), "--rounds", str(given.rounds)]
    load = Workload(WORKLOADS[work].epochs, WORKLOADS[work].batch, given.images)
    pythons = {peer: python_of(peer, given.cache) for peer in PEERS if peer in {c.framework for c in contenders}}
    pythons[OURS] = Path(sys.executable)
    figures: dict[str, list[Figures]] = defaultdict(list)
    for turn in range(given.times):
        for contender in contenders:
            try:
                found = run(contender, pythons[contender.framework], options, load, given.rounds)
            except Failed as failure:
                print(failure, file=sys.stderr)
                continue
            figures[contender.name].append(found)
            shown = ", ".join(f"{figure:,.1f}" for figure in found)
            print(f"{work} {contender.method} {contender.name}, turn {turn + 1}: {shown}", file=sys.stderr)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join((OURS, *PEERS)), help=f"some of {OURS}, {', '.join(PEERS)}")
    parser.add_argument("--workload", choices=WORKLOADS, help="one of them, not both")
    parser.add_argument("--times", type=int, default=3, help="how often each takes its turn")
    parser.add_argument("--rounds", type=int, default=6, help="of each run")
    parser.add_argument("--images", type=int, default=600, help="of each device")
    parser.add_argument("--cache", type=Path, default=Path("build/peers"), help="where the environments are")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    if given.rounds < 2 or not set(given.only.split(",")) <= {OURS, *PEERS}:
        parser.error(f"--only names some of {OURS}, {', '.join(PEERS)}; --rounds is at least 2")
    results: dict[str, Any] = {}
    for work in [given.workload] if given.workload else WORKLOADS:
        for method, contenders in (("FedAvg", FEDAVG), ("FedBuff", FEDBUFF)):
            chosen = [contender for contender in contenders if contender.framework in given.only.split(",")]
            results[f"{work} {method}"] = medians = table(measure(chosen, given, work))
            show(f"{work.upper()}, {method}", medians)
    if given.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
