"""What a fleet costs by its size: start, memory, uploads a second, checkpoint and resume.

    python benchmarks/fleets.py [--json] [--plot docs/explanation/fleets.svg]

FedASMU with 1,000, 10,000 and 100,000 devices, each in a process of its own, everything in that one process: with
`timing_only = true`, where nothing is trained, and with LeNet-5 on shards of 6 images (drawn from the same 6,000, so
that the images weigh the same in every fleet). At most 100 devices are in flight.

start_s: seconds from the call until the first device is started; making the fleet and its shards is in it.
uploads: a second, between the first event and the last, of processor time.
memory_mb: what the process has more at the end than after its imports, images included; at its peak.
checkpoint_mb, shelf_mb: the last checkpoint, and what FedASMU keeps on disk of the devices that have delivered.
save_s: to write that checkpoint, with all that is on the shelf but not yet safely on the disk.
resume_s: seconds from the call until a run that goes on from it is where it was; what a start needs is in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedasmu import Experiment, FederatedData
from fedasmu.run.drive import Drive

DEVICES = (1_000, 10_000, 100_000)
UPLOADS = {"timing": 10_000, "training": 2_000}
IMAGES = 6_000
COLUMNS = ("start_s", "uploads", "memory_mb", "checkpoint_mb", "shelf_mb", "save_s", "resume_s")


def images(devices: int, each: int) -> FederatedData:
    """All devices draw theirs from the same images."""
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(IMAGES, 1, 28, 28, generator=random), torch.randint(0, 10, (IMAGES,), generator=random)
    shards = torch.randint(0, IMAGES, (devices, each), generator=random)
    return FederatedData.of((inputs, targets), (inputs[:100], targets[:100]), list(shards), classes=10)


def settings(mode: str, devices: int, uploads: int) -> dict[str, Any]:
    return {
        "timing_only": mode == "timing",
        "model": "lenet5",
        "fleet": {"devices": devices},
        "pacing": {"max_in_flight": 100, "period": 0.5},
        "local": {"epochs": 2, "batch": 3},
        "algorithm": {"name": "fedasmu"},
        "evaluate": {"every": 1000},
        "stop": {"uploads": uploads},
    }


class Stages:
    """Tells when a run entered its loop, and how long the loop, a checkpoint and the way back in took."""

    def __init__(self) -> None:
        self.entered, self.seconds = 0.0, dict[str, float]()
        for name in ("_enter", "_go_on", "_save"):
            setattr(Drive, name, self._timed(name, getattr(Drive, name)))

    def _timed(self, name: str, stage: Callable[..., None]) -> Callable[..., None]:
        clock = time.process_time if name == "_go_on" else time.perf_counter

        def timed(drive: Drive, *arguments: Any) -> None:
            began = clock()
            stage(drive, *arguments)
            self.seconds[name] = clock() - began
            if name == "_enter":
                self.entered = time.perf_counter()

        return timed


def one(mode: str, devices: int, uploads: int) -> dict[str, float]:
    """A run, and the same one taken up again."""
    torch.set_num_threads(1)
    stages, weight = Stages(), _peak()
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.perf_counter()
        data = images(devices, 6) if mode == "training" else None
        Experiment(settings(mode, devices, uploads), data=data).run(out, extendable=True)
        found = {
            "start_s": stages.entered - began,
            "uploads": uploads / stages.seconds["_go_on"],
            "memory_mb": _peak() - weight,
            "checkpoint_mb": _megabytes(max((out / "checkpoint").iterdir())),
            "shelf_mb": _megabytes(out / "shelves"),
            "save_s": stages.seconds["_save"],
        }
        began = time.perf_counter()
        Experiment.of_run(out, uploads=uploads + 1, data=data).run(out, resume=True)
        return found | {"resume_s": stages.entered - began}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def measure(share: float) -> dict[str, dict[int, dict[str, float]]]:
    found: dict[str, dict[int, dict[str, float]]] = {}
    for mode, uploads in UPLOADS.items():
        print(f"{mode:>10}" + "".join(f"{name:>15}" for name in COLUMNS), flush=True)
        for devices in DEVICES:
            command = [sys.executable, __file__, "--one", mode, str(devices), str(round(uploads * share))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures = found.setdefault(mode, {})[devices] = json.loads(done.stdout)
            print(f"{devices:10,}" + "".join(f"{figures[name]:15,.2f}" for name in COLUMNS), flush=True)
    return found


def plot(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    import matplotlib

    from fedasmu.report.figures import STYLE

    with matplotlib.rc_context({**STYLE, "text.parse_math": True}):  # powers of ten
        figure = matplotlib.figure.Figure(figsize=(9, 2.6), layout="constrained")
        shown = {
            "uploads": "uploads a second",
            "memory_mb": "memory, MB",
            "start_s": "start, s",
            "resume_s": "resume, s",
        }
        for axes, (name, title) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
            for mode, by_size in found.items():
                axes.loglog(list(by_size), [figures[name] for figures in by_size.values()], "o-", label=mode)
            axes.set(title=title, xlabel="devices")
        figure.axes[0].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures")
    parser.add_argument("--budget", type=float, default=1.0, metavar="FACTOR", help="so many times the usual work")
    parser.add_argument("--one", nargs=3, metavar=("MODE", "DEVICES", "UPLOADS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        mode, devices, uploads = arguments.one
        print(json.dumps(one(mode, int(devices), int(uploads))))
        return
    found = measure(arguments.budget)
    if arguments.plot:
        plot(found, arguments.plot)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
