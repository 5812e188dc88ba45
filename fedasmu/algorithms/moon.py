"""Li, He, Song: Model-contrastive federated learning. CVPR 2021, arXiv:2103.16257."""

from __future__ import annotations

from pydantic import Field

from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import Average
from fedasmu.models.contrast import Contrast
from fedasmu.protocol import Memory, Report, Session, Task, Train, Trained, Workload
from fedasmu.schedule import Rounds

WORK = 5 / 3  # two more forward passes beside a training step's three


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

    title = "MOON"
    kind = "synchronous"
    own_objective = True
    name: str = "moon"
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    temperature: float = Field(0.5, gt=0, description="of the contrastive term")

    def schedule(self, pace: Pace) -> Rounds:
        return Rounds(pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Average(federation.examples)

    def learner(self) -> Learner:
        return ContrastiveSGD(self.mu, self.temperature)
