"""Run directories made by hand, with curves that a test chooses: reports need nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedasmu.events import columns
from fedasmu.run.result import Result
from fedasmu.settings import recipe as recipes


def made_run(
    directory: Path,
    method: str = "fedasmu",
    seed: int = 0,
    curve: Sequence[tuple[float, float]] = ((0, 0.1), (100, 0.5), (200, 0.8)),
    fresh: int = 0,
    overrides: Sequence[str] = (),
    **summary: Any,
) -> Result:
    """`curve` has times and accuracies. A model of one megabyte goes down and up once between two evaluations."""
    directory.mkdir(parents=True)
    table = {"model": "lenet5", "seed": seed, "evaluate": {"targets": [0.5, 0.7]}}
    whole = recipes.override({**table, "algorithm": {"name": method}}, overrides)
    (directory / "config.toml").write_text(recipes.parse(whole).toml())
    lines = [",".join(columns("accuracy"))]
    for count, (time, accuracy) in enumerate(curve):
        row = {"time": time, "version": count, "uploads": count, "accuracy": accuracy, "loss": 1.0, "train_loss": 1.0}
        row |= {"staleness": 2.0, "stale": 0, "refused": 0, "lost": 0, "bytes_down": count * 10**6}
        row |= {"bytes_up": count * 10**6, "subset": 0}
        lines.append(",".join(str(row.get(column, "")) for column in columns("accuracy")))
    (directory / "metrics.csv").write_text("\n".join(lines) + "\n")
    events = [{"time": 1.0, "event": "fetch", "task": 0, "device": 0, "fresh": 3}] * fresh
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    result = Result(directory)
    count = len(curve) - 1
    known = {
        "method": method,
        "data": "fashion-mnist",
        "seed": seed,
        "accuracy": result.accuracy,
        "last_accuracy": result.last_score,
        "best_accuracy": result.best_score,
        "time_to": {str(target): result.time_to(target) for target in result.config["evaluate"]["targets"]},
        "virtual_seconds": curve[-1][0],
        "version": count,
        "uploads": count,
        "stale": 0,
        "refused": 0,
        "lost": 0,
        "mean_staleness": 2.0,
        "bytes_down": (count + fresh) * 10**6,
        "bytes_up": count * 10**6,
        "bytes_fresh": fresh * 10**6,
        "wall_seconds": 1.5,
    }
    (directory / "summary.json").write_text(json.dumps(known | summary))
    return result
