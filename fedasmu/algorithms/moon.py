"""Li, He, Song: Model-contrastive federated learning. CVPR 2021, arXiv:2103.16257."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import Average
from fedasmu.models.features import forward_with_features
from fedasmu.protocol import Memory, Report, Session, Task, Train, Trained, Workload
from fedasmu.schedule import Rounds
from fedasmu.vector import Layout

WORK = 5 / 3  # two more forward passes beside a training step's three


def contrastive(features: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """mean of -log(e^a / (e^a + e^b)), a = cos(z, z_received) / T, b = cos(z, z_previous) / T"""
    a = cosine_similarity(features, received) / temperature
    b = cosine_similarity(features, previous) / temperature
    return softplus(b - a).mean()


class Features(nn.Module):
    """The features of a network as a network, so that they can be asked for under other weights."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.layout = inner, Layout.of(inner)

    def forward(self, inputs: Tensor) -> Tensor:
        return forward_with_features(self.inner, inputs)[1]

    def under(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """In evaluation mode, and without gradients."""
        layout, vector = self.layout, vector.to(inputs.device)
        tensors = {f"inner.{entry.name}": entry.view(vector) for entry in (*layout.parameters, *layout.buffers)}
        with torch.no_grad():
            features: Tensor = functional_call(self.eval(), tensors, inputs)
        self.train()
        return features


@dataclass(frozen=True)
class Contrast:
    """The objective: cross-entropy + mu * contrastive. It travels to worker processes, so it holds plain vectors."""

    received: Tensor
    previous: Tensor
    mu: float
    temperature: float

    def __call__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        logits, features = forward_with_features(module, inputs)
        frozen = Features(module)
        received, previous = frozen.under(self.received, inputs), frozen.under(self.previous, inputs)
        return cross_entropy(logits, targets) + self.mu * contrastive(features, received, previous, self.temperature)


class ContrastiveSGD(Learner):
    """Local SGD that seeks the received model's features and flees those of the device's own previous model."""

    def __init__(self, mu: float, temperature: float) -> None:
        self.mu, self.temperature = mu, temperature

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        received, previous = task.model.vector, memory.get("previous")
        steps = range(work.steps)
        if self.mu == 0 or previous is None:
            trained: Trained = yield Train(received, steps, task.lr)
        else:
            objective = Contrast(received, previous, self.mu, self.temperature)
            trained = yield Train(received, steps, task.lr, objective=objective, work=WORK)
        memory["previous"] = trained.vector
        return Report(trained.vector, work.examples, trained.loss)


class Moon(Algorithm):
    """FedAvg whose devices keep their features near the global model's and away from their last own model's."""

    kind = "synchronous"
    name: Literal["moon"] = "moon"
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    temperature: float = Field(0.5, gt=0, description="of the contrastive term")

    def schedule(self, pace: Pace) -> Rounds:
        return Rounds(pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Average()

    def learner(self) -> Learner:
        return ContrastiveSGD(self.mu, self.temperature)
