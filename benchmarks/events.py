"""What the simulator and the server cost for an upload when nothing is trained: FedASMU beside FedAsync, in turns.

    python benchmarks/events.py [--json]

Both run with `timing_only = true`, 1,000 and 100,000 devices. Counted is the processor time between the first event and
the last; making the fleet and concluding the run are not in it.

fedasync_events_*: events of the virtual clock a second (a trigger, the end of a computation, a request, an arrival).
fedasync_*, fedasmu_*: uploads a second.
ratio_*: how many times as long an upload of FedASMU takes (median over the turns). It has eight events where FedAsync
has three: it asks for a fresh model in the middle, and probes before and after it merges it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedasmu import Experiment
from fedasmu.run.drive import Drive
from fedasmu.simulation.simulator import Simulator

FLEETS = {"1000": 1_000, "100000": 100_000}


@contextmanager
def timed_loop(clock: Callable[[], float] = time.process_time) -> Iterator[list[float]]:
    """The seconds of this clock that the loop over the events takes, and how many events there are."""
    loop = Drive._go_on
    found = [0.0, 0]

    def timed(self: Drive) -> None:
        began = clock()
        loop(self)
        found[0] += clock() - began
        assert isinstance(self.driver, Simulator)
        events = self.driver.clock
        found[1] += events._scheduled - len(events._heap)

    Drive._go_on = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Drive._go_on = loop  # type: ignore[method-assign]


def run(method: str, devices: int, uploads: int) -> tuple[float, float]:
    """Uploads and events a second."""
    table = {
        "timing_only": True,
        "fleet": {"devices": devices},
        "algorithm": {"name": method},
        "evaluate": {"every": 1000},
        "stop": {"uploads": uploads},
    }
    with tempfile.TemporaryDirectory() as folder, timed_loop() as found:
        Experiment(table).run(Path(folder) / "run", workers="inline")
    seconds, events = found
    return uploads / seconds, events / seconds


def measure(uploads: int, turns: int) -> dict[str, float]:
    figures: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, devices in FLEETS.items():
            plain, events = run("fedasync", devices, uploads)
            ours, _ = run("fedasmu", devices, uploads)
            found = {"fedasync": plain, "fedasmu": ours, "ratio": plain / ours, "fedasync_events": events}
            for label, figure in found.items():
                figures.setdefault(f"{label}_{name}", []).append(figure)
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--uploads", type=int, default=10_000, help="of each run")
    parser.add_argument("--turns", type=int, default=3, help="how often each is run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(arguments.uploads, arguments.turns)
    for name, figure in figures.items():
        print(f"{name:24} {figure:,.2f}" if name.startswith("ratio") else f"{name:24} {figure:,.0f} a second")
    if arguments.json:
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
