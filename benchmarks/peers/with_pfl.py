"""The work in pfl: one process, or several that share a cohort as its documentation says (PFL_WORKER_ADDRESSES)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from work import COHORT, DEVICES, LR, Order, StepCount, Told, lenet5, order, shard

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Network(nn.Module):
    """A module as pfl wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = lenet5()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, object]:
        return {}


def start_others(workers: int) -> list[subprocess.Popen[bytes]]:
    """This process is the first; the others are started here, with the same command line."""
    if workers == 1 or RANK in os.environ:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{port}" for _ in range(workers))
    ranks = [os.environ | {RANK: str(rank)} for rank in range(1, workers)]
    os.environ[RANK] = "0"
    return [subprocess.Popen([sys.executable, *sys.argv], env=environment) for environment in ranks]


def train(wanted: Order) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    first = os.environ.get(RANK, "0") == "0"
    told, counted, load = Told(wanted.report), StepCount(), wanted.load

    class Shuffled(Dataset):  # type: ignore[misc]
        """pfl's own is read in order: the others shuffle."""

        def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
            inputs, targets = self.raw_data
            for batch in torch.randperm(len(inputs)).split(batch_size or len(inputs)):
                yield [inputs[batch], targets[batch]]

    class EndOfRound(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, metrics: object, model: object, *, central_iteration: int) -> object:
            if first:
                told.round()
            return False, Metrics()

    np.random.seed(0)
    torch.manual_seed(0)
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(
        lambda device: Shuffled(shard(device, load.images), user_id=str(device)),
        MinimizeReuseUserSampler(list(range(DEVICES))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=wanted.rounds,
            evaluation_frequency=wanted.rounds + 1,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=load.batch, local_num_epochs=load.epochs, local_learning_rate=LR
        ),
        callbacks=[EndOfRound()],
    )
    told.steps(counted.count - wanted.rounds)  # the server makes a step of its own in each round


if __name__ == "__main__":
    wanted = order()
    others = start_others(wanted.workers)
    train(wanted)
    for other in others:
        other.wait()
