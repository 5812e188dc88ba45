"""McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from decentralized
data. AISTATS 2017."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.protocol import Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Rounds


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_i (n_i / sum n) w_i"""
    total = sum(weights)
    mean = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        mean.add_(vector, alpha=weight / total)
    return mean


class Average(Aggregator):
    """The uploads' mean, weighted by their devices' numbers of examples, as the roster has them."""

    def __init__(self, examples: Sequence[int]) -> None:
        self.examples = examples

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        examples = [self.examples[upload.device] for upload in uploads]
        vector = weighted_mean([upload.report.vector for upload in uploads], examples)
        return Aggregate(vector, [count / sum(examples) for count in examples])


class LocalSGD(Learner):
    """All the task's steps of SGD in one piece, pulled towards the received model by `pull`."""

    def __init__(self, pull: float = 0.0) -> None:
        self.pull = pull

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        trained: Trained = yield Train(task.model.vector, range(work.steps), task.lr, pull=self.pull)
        return Report(trained.vector, work.examples, trained.loss)


class FedAvg(Algorithm):
    """A cohort trains, the server waits for all of it, and averages by number of examples."""

    title = "FedAvg"
    kind = "synchronous"
    name: str = "fedavg"

    def schedule(self, pace: Pace) -> Rounds:
        return Rounds(pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Average(federation.examples)

    def learner(self) -> Learner:
        return LocalSGD()
