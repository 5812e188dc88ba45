"""The work in FedLab's standalone pipeline, which has one process."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch.utils.data import DataLoader, TensorDataset
from work import COHORT, DEVICES, LR, Order, StepCount, Told, lenet5, order, shard

for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):  # only its own data sets need it
    sys.modules[name] = ModuleType(name)
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]


def pipeline(wanted: Order, told: Told) -> object:
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline

    class Shards(FedDataset):  # type: ignore[misc]
        def get_dataloader(self, id: int, batch_size: int) -> object:
            return DataLoader(TensorDataset(*shard(id, wanted.load.images)), batch_size=batch_size, shuffle=True)

    class Rounds(StandalonePipeline):  # type: ignore[misc]
        def evaluate(self) -> None:
            told.round()

    trainer = SGDSerialClientTrainer(lenet5(), DEVICES)
    trainer.setup_dataset(Shards())
    trainer.setup_optim(wanted.load.epochs, wanted.load.batch, LR)
    return Rounds(SyncServerHandler(lenet5(), wanted.rounds, COHORT / DEVICES), trainer)


if __name__ == "__main__":
    wanted = order()
    torch.manual_seed(0)
    told, counted = Told(wanted.report), StepCount()
    pipeline(wanted, told).main()  # type: ignore[attr-defined]
    told.steps(counted.count)
