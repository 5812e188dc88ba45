"""Su, Li: How asynchronous can federated learning be? IWQoS 2022."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field
from torch.nn.functional import cosine_similarity

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.steps import displacement, stepped
from fedasmu.encoding.note import table
from fedasmu.protocol import Memory, Model, Poll, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic


def importance(examples: int, delay: int, cosine: float, bound: int, staleness: float, similarity: float) -> float:
    """n_k (c_s B / (x_k + B) + c_c (cos_k + 1) / 2), before all of them are made to sum to 1"""
    return examples * (staleness * bound / (delay + bound) + similarity * (cosine + 1) / 2)


def agreement(current: Model, upload: Upload, trainable: int) -> float:
    """cos(delta_k, w_t - w_o): whether the device moved as the server did meanwhile. 1 up to a delay of 1."""
    if upload.staleness - 1 <= 1:
        return 1.0
    base = upload.base.vector[:trainable]
    moved, server = upload.report.vector[:trainable] - base, current.vector[:trainable] - base
    return float(cosine_similarity(moved, server, dim=0))


@dataclass(frozen=True, slots=True)
class StepsNote:
    """What a device says beside its model. It is for the record: no weight depends on it."""

    steps: int | None = None  # that it has done


class Weigh(Aggregator):
    """w <- w + sum_k v_k delta_k."""

    note_type = StepsNote

    def __init__(self, settings: Port, federation: Federation) -> None:
        self.settings, self.examples, self.trainable = settings, federation.examples, federation.trainable

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        values = [self._importance(current, upload) for upload in uploads]
        whole = min(1.0, len(uploads) / self.settings.minimum)  # a left-over upload counts as it would among others
        weights = [whole * value / sum(values) for value in values]
        update = displacement(uploads, weights)
        return Aggregate(stepped(current, update, uploads, weights, self.trainable), weights)

    def _importance(self, current: Model, upload: Upload) -> float:
        settings, delay = self.settings, upload.staleness - 1
        cosine = agreement(current, upload, self.trainable)
        examples = self.examples[upload.device]
        return importance(examples, delay, cosine, settings.bound, settings.staleness, settings.similarity)


def cuts(work: Workload) -> list[int]:
    """The steps after which a device looks whether it is called in: the end of every epoch, and where there are fewer
    than three, within them too. A task of one epoch could not be called in at all: the server would wait for its end.
    """
    parts = min(work.steps, work.epochs * math.ceil(3 / work.epochs))
    return [work.steps * part // parts for part in range(1, parts + 1)]


class Interruptible(Learner):
    """Local SGD, part by part: when the server calls, the device delivers the parts that it has finished."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        vector, loss, done = task.model.vector, 0.0, 0
        for cut in cuts(work):
            trained: Trained = yield Train(vector, range(done, cut), task.lr)
            vector, loss, done = trained.vector, loss + trained.loss * (cut - done), cut
            if done < work.steps and (yield Poll()):
                break
        return Report(vector, work.examples, loss / done, table(StepsNote(done)))


class Port(Algorithm):
    """The server waits for a few devices and calls in those that lag, then weighs by staleness and direction."""

    title = "PORT"
    kind = "buffered"
    name: str = "port"
    minimum: int = Field(5, ge=1, description="K_min: uploads to an aggregation, at least")
    bound: int = Field(10, ge=1, description="B: the delay beyond which a device is called in")
    staleness: float = Field(3.0, gt=0, description="c_s: what freshness counts for")
    similarity: float = Field(1.0, ge=0, description="c_c: what agreement with the server's own movement counts for")
    urgent: bool = Field(True, description="call in devices that lag; otherwise only weigh")

    @property
    def pull_beyond(self) -> int | None:
        return self.bound + 1 if self.urgent else None  # the server counts a fresh upload as 1

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.minimum)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Weigh(self, federation)

    def learner(self) -> Learner:
        return Interruptible()
