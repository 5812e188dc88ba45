"""Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020."""

from __future__ import annotations

from pydantic import Field

from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import Average, LocalSGD
from fedasmu.schedule import Rounds


class FedProx(Algorithm):
    """FedAvg whose devices are held near the model they were sent."""

    title = "FedProx"
    kind = "synchronous"
    name: str = "fedprox"
    mu: float = Field(0.01, ge=0, description="strength of the proximal term (mu / 2) ||w - w_r||^2 on the devices")

    def schedule(self, pace: Pace) -> Rounds:
        return Rounds(pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Average(federation.examples)

    def learner(self) -> Learner:
        return LocalSGD(pull=self.mu)
