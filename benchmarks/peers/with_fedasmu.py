"""The work in fedasmu: the native engine or PyTorch's, one process or several."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from work import COHORT, DEVICES, LR, Order, Told, images, order

from fedasmu import Experiment, FederatedData
from fedasmu.events import Renewed
from fedasmu.server.desk import Desk


def settings(wanted: Order) -> dict[str, Any]:
    method = {"name": "fedbuff", "buffer": COHORT} if wanted.method == "fedbuff" else {"name": "fedavg"}
    return {
        "model": "lenet5",
        "engine": wanted.engine,
        "fleet": {"devices": DEVICES},
        "pacing": {"max_in_flight": COHORT},
        "local": {"epochs": wanted.load.epochs, "batch": wanted.load.batch, "lr": LR},
        "algorithm": method,
        "evaluate": {"every": COHORT * wanted.rounds},
        "stop": {"uploads": COHORT * wanted.rounds},
    }


def main() -> None:
    wanted = order()
    told = Told(wanted.report)
    inputs, targets = images(wanted.load.images)
    shards = list(torch.arange(len(inputs)).view(DEVICES, -1))
    data = FederatedData.of((inputs, targets), (inputs[:1], targets[:1]), shards, classes=10)

    def observe(desk: Desk, event: object) -> None:
        if isinstance(event, Renewed):
            told.round()

    with tempfile.TemporaryDirectory() as folder:
        workers = "inline" if wanted.workers == 1 else wanted.workers
        Experiment(settings(wanted), data=data).run(Path(folder) / "run", workers=workers, observe=observe)


if __name__ == "__main__":
    main()
