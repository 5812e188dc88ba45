"""Methods on a loss that is not the cross-entropy, which nobody can calibrate: a regression with skewed devices.

    python benchmarks/regression.py --out runs/regression [--seeds 3] [--uploads 300]

Fashion-MNIST's classes as ten numbers each, the mean squared error, a Dirichlet split of 0.5, the tables' fleet, three
learning rates for every method. Some 6 minutes of one core a seed; runs that are finished are not made again.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.nn.functional import one_hot

from fedasmu import Experiment, FederatedData, Result
from fedasmu.data.examples import Examples
from fedasmu.run.materials import federated_data
from fedasmu.settings.recipe import load

METHODS = {
    "fedasmu-r": {"name": "fedasmu-r"},
    "fedasmu-r, stride = 0": {"name": "fedasmu-r", "stride": 0.0},
    "fedasmu": {"name": "fedasmu"},
    "fedbuff": {"name": "fedbuff"},
    "fedasync": {"name": "fedasync"},
    "port": {"name": "port"},
    "fedavg": {"name": "fedavg"},
    "feddyn": {"name": "feddyn"},
}
RATES = (0.3, 1.0, 3.0)


def numbers(seed: int) -> FederatedData:
    """A column for each class, 1 in that of an example and 0 in the others."""
    known = federated_data(load("league", ["data.alpha=0.5", f"seed={seed}"]), print)[0]

    def with_columns(examples: Examples) -> Examples:
        return replace(examples, targets=one_hot(examples.targets, known.classes).float())

    return replace(known, name="columns", train=with_columns(known.train), test=with_columns(known.test))


def judged(out: Path, method: str, rate: float, data: FederatedData, seed: int, uploads: int) -> float:
    """The mean of the last eight evaluations' R2."""
    settings = {
        "seed": seed,
        "model": "lenet5",
        "algorithm": METHODS[method],
        "fleet": {"preset": "paper", "seconds_per_sample": 1.05},
        "local": {"loss": "mse", "lr": rate, "batch": 16, "epochs": 1},
        "evaluate": {"metric": "r2", "every": 10},
        "stop": {"uploads": uploads},
    }
    if not (out / "summary.json").exists():
        Experiment(settings, data=data).run(out, overwrite=True)
    return float(np.mean(Result(out).curve["r2"][-8:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/regression"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--uploads", type=int, default=300)
    given = parser.parse_args()
    by_seed = [numbers(seed) for seed in range(given.seeds)]
    print("| R2 | " + " | ".join(f"lr = {rate}" for rate in RATES) + " |\n|---|" + "---:|" * len(RATES), flush=True)
    for method in METHODS:
        cells = []
        for rate in RATES:
            folders = [given.out / f"{method}-{rate}" / f"seed-{seed}" for seed in range(given.seeds)]
            found = [
                judged(folder, method, rate, by_seed[seed], seed, given.uploads) for seed, folder in enumerate(folders)
            ]
            cells.append(f"{statistics.fmean(found):.3f} ({', '.join(f'{one:.3f}' for one in found)})")
        print(f"| {method} | {' | '.join(cells)} |", flush=True)
