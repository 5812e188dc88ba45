"""The end of a run: its model, its summary, and a word when it came early."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file

import fedasmu
from fedasmu import engine, pools
from fedasmu.build import Build
from fedasmu.config import Stop
from fedasmu.desk import Desk
from fedasmu.record import write_whole
from fedasmu.result import Result
from fedasmu.simulation.simulator import Simulator


def early(ended: str | None, stop: Stop, simulator: Simulator) -> str:
    """Why a run ended before it had its uploads."""
    received = simulator.desk.server.counters.received
    so_far = f"ended with {received:,} of {stop.uploads:,} uploads: "
    if ended == "fleet":
        return so_far + f"no device comes back after {simulator.now:,.0f} s (fleet.trace)"
    nobody = "" if received else "; no device had finished its first task by then"
    return so_far + f"the time is up (stop.time = {stop.time:g} s){nobody}"


class Driver(Protocol):
    """What has driven a run to its end."""

    @property
    def desk(self) -> Desk: ...

    @property
    def now(self) -> float: ...


def conclude(
    build: Build, simulator: Driver, directory: Path, ended: str | None, workers: pools.Workers, wall: float
) -> None:
    """Write the model and the summary."""
    if not build.config.timing_only:
        save_file(build.layout.tensors(simulator.desk.server.model.vector), directory / "model.safetensors")
    simulator.desk.record.close()
    result, counters = Result(directory), simulator.desk.server.counters
    summary = {
        "method": build.config.algorithm.name,
        "data": build.data.name if build.data else "none",
        "seed": build.config.seed,
        "accuracy": result.accuracy,
        "last_accuracy": result.last_accuracy,
        "best_accuracy": result.best_accuracy,
        "time_to": {str(target): result.time_to(target) for target in build.config.evaluate.targets},
        "virtual_seconds": simulator.now,
        "version": simulator.desk.server.model.version,
        "uploads": counters.received,
        "ended": ended,
        "stale": counters.stale,
        "refused": counters.refused,
        "lost": counters.lost,
        "mean_staleness": simulator.desk.mean_staleness,
        "bytes_down": simulator.desk.meter.tally.bytes_down,
        "bytes_up": simulator.desk.meter.tally.bytes_up,
        "wall_seconds": round(wall, 3),
        "workers": pools.name(workers),
        "engine": engine.name(build.native),
        **surroundings(),
    }
    write_whole(directory / "summary.json", json.dumps(summary, indent=1) + "\n")


def on(build: Build) -> str:
    """What rounds: the same recipe has the same bits where this is the same."""
    return f"{engine.name(build.native)} on {_machine()}"


def _machine() -> str:
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def surroundings() -> dict[str, str]:
    """What a number depends on besides the recipe: the code and the machine."""
    git = ["git", "-C", str(Path(fedasmu.__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    return {"fedasmu": fedasmu.__version__, "commit": commit, "torch": torch.__version__, "machine": _machine()}
