"""Ma, Xu, Xu, Jiang, Huang, Huang: FedSA: a semi-asynchronous federated learning mechanism in heterogeneous edge
computing. IEEE Journal on Selected Areas in Communications 39(12), 2021. Not the FedSA of FedASMU's paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from fedasmu.algorithms.asyncpart import participation
from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedsa import Directed, EpochsNote, FactorsBrief
from fedasmu.encoding.note import table
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


class PartialAverage(Aggregator):
    """w <- (1 - sum_S p_i) w + sum_S p_i w_i, where p_i is the device's share of all examples, their sum at most 1."""

    note_type = EpochsNote

    def __init__(self, settings: FedSASemi, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        self.counts = [0] * federation.devices

    def brief(self, device: int) -> Mapping[str, Any]:
        """The learning rate is divided by how often the device takes part, compared with an even share."""
        devices = self.federation.devices
        frequency = devices * participation(self.counts[device], sum(self.counts), devices)
        return table(FactorsBrief(1.0, min(self.settings.max_boost, 1 / frequency)))

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        shares = [self.federation.examples[upload.device] / self.federation.total for upload in uploads]
        # While the server waits for one device others may be there twice: then nothing of the old model is left.
        weights = [share / max(1.0, sum(shares)) for share in shares]
        vector = (1 - sum(weights)) * current.vector
        for upload, weight in zip(uploads, weights, strict=True):
            vector.add_(upload.report.vector, alpha=weight)
            self.counts[upload.device] += 1
        return Aggregate(vector, weights)

    def state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


class FedSASemi(Algorithm):
    """Reconstruction: the first M uploads are averaged into the model, and nobody may lag by more than tau_0."""

    title = "FedSA-semi"
    kind = "buffered"
    name: str = "fedsa-semi"
    buffer: int = Field(3, ge=1, description="M: uploads to an aggregation")
    bound: int = Field(3, ge=1, description="tau_0: the server waits for a device that would lag by more versions")
    max_boost: float = Field(2.0, ge=1, description="the most by which a rare device's learning rate is raised")

    @property
    def pull_beyond(self) -> int | None:
        # The server counts a fresh upload as 1, and asks before the version moves: these two cancel.
        return self.bound

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return PartialAverage(self, federation)

    def learner(self) -> Learner:
        return Directed()
