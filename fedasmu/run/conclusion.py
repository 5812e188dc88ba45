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
from fedasmu import pools
from fedasmu.engines import contract
from fedasmu.errors import UserError
from fedasmu.run.build import World
from fedasmu.run.result import Result
from fedasmu.server.desk import Desk
from fedasmu.settings.config import Stop
from fedasmu.system.disk import replaced, write_whole


class Ended(Protocol):
    """What has driven a run to its end."""

    @property
    def desk(self) -> Desk: ...

    @property
    def now(self) -> float: ...


def early(ended: str | None, stop: Stop, driver: Ended) -> str:
    """Why a run ended before it had its uploads."""
    received = driver.desk.server.counters.received
    so_far = f"ended with {received:,} of {stop.uploads:,} uploads: "
    if ended == "fleet":
        return so_far + f"no device comes back after {driver.now:,.0f} s (fleet.trace)"
    nobody = "" if received else "; no device had finished its first task by then"
    return so_far + f"the time is up (stop.time = {stop.time:g} s){nobody}"


def conclude(
    world: World, driver: Ended, directory: Path, ended: str | None, workers: pools.Workers, wall: float
) -> None:
    """Write the model and the summary."""
    if not world.config.timing_only:
        with replaced(directory / "model.safetensors") as path:
            save_file(world.layout.tensors(driver.desk.judged.vector), path)
    driver.desk.record.close()
    _check_measured(driver.desk)
    result, counters = Result(directory), driver.desk.server.counters
    name = result.metric.name
    summary = {
        "method": world.config.algorithm.name,
        "data": world.data.name if world.data else "none",
        "seed": world.config.seed,
        "metric": name,
        name: result.score,
        f"{name}_by": world.config.evaluate.by,
        f"last_{name}": result.last_score,
        f"best_{name}": result.best_score,
        "time_to": {str(target): result.time_to(target) for target in world.config.evaluate.targets},
        "virtual_seconds": driver.now,
        "version": driver.desk.server.model.version,
        "uploads": counters.received,
        "ended": ended,
        "stale": counters.stale,
        "refused": counters.refused,
        "lost": counters.lost,
        "mean_staleness": driver.desk.mean_staleness,
        "bytes_down": driver.desk.meter.tally.bytes_down,
        "bytes_up": driver.desk.meter.tally.bytes_up,
        **(
            {} if world.config.transfer.precision == "float32" else {"bytes_fresh": driver.desk.meter.tally.bytes_fresh}
        ),
        "wall_seconds": round(wall, 3),
        "workers": pools.name(workers),
        "engine": _engine(world),
        **surroundings(),
    }
    write_whole(directory / "summary.json", json.dumps(summary, indent=1) + "\n")


def _check_measured(desk: Desk) -> None:
    """Only where the devices measure can there be nothing: the server begins with an evaluation."""
    counters = desk.server.counters
    if desk.meter.latest is None:
        raise UserError(
            f"evaluate.by = 'devices': of {counters.received} uploads ({counters.refused} of them refused) none had a "
            "measurement with it, so this run has a model and no accuracy; let it go on for longer (stop.uploads, "
            "stop.time), or let the server measure (evaluate.by = 'server')"
        )


def _engine(world: World) -> str:
    return contract.name(None if world.trainer is None else world.trainer.native)


def on(world: World) -> str:
    """What rounds: the same recipe has the same bits where this is the same."""
    return f"{_engine(world)} on {_machine()}"


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
