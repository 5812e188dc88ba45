"""Your own data and model: a CSV of measurements by site becomes a federation, and a small network learns from it.

Each site is a device. Run it with `python examples/own_data.py`; it takes a few seconds.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

from fedasmu import Experiment, FederatedData, Result


def write_measurements(path: Path, sites: int = 12, rows: int = 60) -> None:
    """Stands for the file that you have: a site, four measurements, and whether a part was faulty."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "a", "b", "c", "d", "faulty"])
        for site in range(sites):
            offset = random.normal(0, 0.3, 4)  # no two sites measure alike
            for _ in range(rows):
                faulty = int(random.random() < 0.4)
                values = random.normal(0, 1, 4) + offset + faulty * np.array([1.5, -1.0, 0.5, 0.0])
                writer.writerow([site, *values.round(4), faulty])


def federation(path: Path) -> FederatedData:
    """One device a site; every fifth row is kept to test on."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    inputs = np.array([[float(row[name]) for name in "abcd"] for row in rows])
    targets, sites = np.array([int(row["faulty"]) for row in rows]), np.array([int(row["site"]) for row in rows])
    test = np.arange(len(rows)) % 5 == 0
    shards = [np.flatnonzero(sites[~test] == site).tolist() for site in np.unique(sites)]
    return FederatedData.of((inputs[~test], targets[~test]), (inputs[test], targets[test]), shards)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def main(folder: Path) -> Result:
    write_measurements(folder / "measurements.csv")
    settings = {
        "algorithm": {"name": "fedasmu"},
        "pacing": {"max_in_flight": 4},
        "local": {"lr": 0.1, "batch": 16},
        "stop": {"uploads": 120},
    }
    experiment = Experiment(settings, model=network, data=federation(folder / "measurements.csv"))
    return experiment.run(folder / "run", progress=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        result = main(Path(place))
        print(result)
        print(result.model(network()))
