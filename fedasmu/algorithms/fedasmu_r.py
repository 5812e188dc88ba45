"""FedASMU-R: our form of FedASMU (Liu et al., AAAI 2024), which rebases where the paper mixes.

A device that asks for a fresh model goes on from it with all its own progress on top; the server applies only what the
device's SGD added, weighed by the staleness that is left, corrected for the pull of the devices that are not there,
with what all devices agree on once more, and only as far as others have not gone the same way already. The device
trains calibrated for its own mixture of classes (training.py). The corrections are in corrections.py, the weights'
formulas in fedasmu/formulas.py; docs/algorithms/fedasmu-r.md has them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.corrections import CachedUpdates, Correction, DynamicRegulariser, Uncorrected
from fedasmu.algorithms.fedasmu import formulas
from fedasmu.algorithms.fedasmu.formulas import ServerControls, displaced_from, own_displacement
from fedasmu.algorithms.fedasmu.notes import merge_fits
from fedasmu.algorithms.fedasmu.slots import QTable, heuristic
from fedasmu.algorithms.feddyn import anchor
from fedasmu.algorithms.guard import GuardSettings
from fedasmu.algorithms.steps import stepped
from fedasmu.encoding.note import of_table, table
from fedasmu.protocol import Fetch, Memory, Model, Report, Session, Task, Train, Trained, Upload, Workload
from fedasmu.schedule import Periodic


def rebased(vector: Tensor, start: Tensor, fresh: Tensor, trainable: int) -> Tensor:
    """(R1): w + (w_g - w_o). BatchNorm's statistics are those of the fresh model: a difference of variances is none."""
    moved = vector + (fresh - start)
    moved[trainable:] = fresh[trainable:]
    return moved


def saved(origin: int, fresh: int, done: int, steps: int) -> float:
    """(R2): (1 - k/n) (g - o), the versions by which a model refreshed after k of n steps is less stale"""
    return formulas.interpolated_version(origin, fresh, done, steps) - origin


def gone(update: Tensor, movement: Tensor) -> float:
    """(R7): <u, m> / |u|^2, how far the others have gone the way of an update since it was computed; 1 is all of it"""
    square = float(torch.dot(update, update))
    return float(torch.dot(update, movement)) / square if square > 0 else 0.0


def within(reach: float, alpha: float, already: float) -> float:
    """(R8): min(alpha, reach - gone), and not below 0"""
    return max(0.0, min(alpha, reach - already))


@dataclass(frozen=True, slots=True)
class RefreshNote:
    """What a device says beside its model. None: it did not ask for a fresh model, or there was no newer one."""

    beta: float | None = None  # the fresh model's weight; 1 where the device went on from it
    merged_after: int | None = None  # the steps that were done
    slot: int | None = None  # likewise, also where there was no newer model
    reward: float | None = None  # (R9)


@dataclass(frozen=True, slots=True)
class RefreshBrief:
    """What a device is told with its task."""

    trainable: int  # elements of the model, the first ones
    pull: float | None = None  # of the dynamic regulariser


class Rebasing(Aggregator):
    """The server half: w <- w + alpha (corrected displacement), with alpha from the staleness that is left."""

    note_type = RefreshNote

    def __init__(self, settings: FedASMUR, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        self.correction = settings.corrected_by(federation)

    def brief(self, device: int) -> Mapping[str, Any]:
        return table(RefreshBrief(self.federation.trainable, self.correction.pull(device)))

    def plausible(self, upload: Upload) -> bool:
        steps = self.federation.workload(upload.device).steps
        return merge_fits(upload.note, steps, steps, 0.0, 1.0)

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        settings, trainable, staleness = self.settings, self.federation.trainable, self._staleness(upload)
        xi = formulas.xi(settings.controls, formulas.round_term(current.version), staleness)
        alpha = formulas.squash(settings.mu_alpha, xi)
        update = own_displacement(upload)
        update[:trainable] = self.correction.corrected(upload.device, update[:trainable].clone())
        details = {"effective": staleness, **self.correction.details()}
        if settings.reach is not None:
            details["gone"] = gone(update[:trainable], self._movement(current, upload))
            alpha = within(settings.reach, alpha, details["gone"])
        vector = stepped(current, update, uploads, [alpha], trainable, alpha)
        return Aggregate(vector, [alpha], details)

    def origin(self, upload: Upload) -> Tensor:
        return displaced_from(upload)

    def _staleness(self, upload: Upload) -> float:
        merged_after = self._merged_after(upload)
        if upload.fresh is None or merged_after is None or not self.settings.effective_staleness:
            return upload.staleness
        steps = self.federation.workload(upload.device).steps
        return upload.staleness - saved(upload.base.version, upload.fresh.version, merged_after, steps)

    def _movement(self, current: Model, upload: Upload) -> Tensor:
        """What the others have done since the device's models: the one it was sent, and for the rest the fresh one."""
        since, merged_after = upload.base.vector, self._merged_after(upload)
        if upload.fresh is not None and merged_after is not None:
            rest = 1.0 - merged_after / self.federation.workload(upload.device).steps
            since = torch.lerp(since, upload.fresh.vector, upload.note.beta * rest)
        return (current.vector - since)[: self.federation.trainable]

    @staticmethod
    def _merged_after(upload: Upload) -> int | None:
        note: RefreshNote = upload.note
        return note.merged_after if note.beta else None

    def state(self) -> dict[str, Any]:
        return self.correction.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.correction.restore(state)


class Refreshing(Learner):
    """The device half: train to the slot, ask for a fresh model, rebase on it, train on."""

    def __init__(self, settings: FedASMUR) -> None:
        self.settings = settings

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        start, note, brief = task.model.vector, RefreshNote(), of_table(RefreshBrief, task.note)
        pull, h = brief.pull or 0.0, memory.get("h", torch.zeros(()))
        action, cut = self._slot(task, work, memory)
        towards = anchor(start, h) if pull else None
        calibrated = self.settings.calibrate
        first: Trained = yield Train(start, range(cut), task.lr, pull=pull, anchor=towards, calibrated=calibrated)
        vector, loss, shift = first.vector, first.loss, torch.zeros(())
        if cut < work.steps:
            fresh: Model | None = yield Fetch()
            if fresh is not None:
                vector, beta = self._refreshed(vector, start, fresh.vector, brief.trainable)
                shift = beta * (fresh.vector - start)
                note = RefreshNote(beta, cut)
            note = replace(note, slot=cut, reward=self._reward(action, cut, fresh, task, work, memory))
            rest, towards = range(cut, work.steps), towards + shift if towards is not None else None
            second: Trained = yield Train(vector, rest, task.lr, pull=pull, anchor=towards, calibrated=calibrated)
            vector, loss = second.vector, (loss * cut + second.loss * len(rest)) / work.steps
        if pull:
            memory["h"] = h + (vector - shift - start)
        return Report(vector, work.examples, loss, table(note))

    def _refreshed(self, vector: Tensor, start: Tensor, fresh: Tensor, trainable: int) -> tuple[Tensor, float]:
        if self.settings.fresh == "rebase":
            return rebased(vector, start, fresh, trainable), 1.0
        return torch.lerp(vector, fresh, self.settings.beta), self.settings.beta

    def _slot(self, task: Task, work: Workload, memory: Memory) -> tuple[int, int]:
        """The action taken (-1 where none is), and the steps that are done when the device asks; all: it does not."""
        if self.settings.fresh == "none" or work.steps < 2:
            return -1, work.steps
        if self.settings.slots != "learned":
            return -1, heuristic(self.settings.slots, work.steps)
        memory.setdefault("slot", heuristic("middle", work.steps))
        return self._table(memory, work).choose(task.seed)

    def _reward(self, action: int, cut: int, fresh: Model | None, task: Task, work: Workload, memory: Memory) -> float:
        """(R9): a slot is worth the versions that it saved, nothing where there was no newer one."""
        reward = 0.0 if fresh is None else saved(task.model.version, fresh.version, cut, work.steps)
        if action >= 0:
            self._table(memory, work).learn(action, cut, reward)
        return reward

    def _table(self, memory: Memory, work: Workload) -> QTable:
        return QTable(memory, work.steps, self.settings.q_rate, self.settings.q_discount, self.settings.epsilon)


class FedASMUR(Algorithm):
    """FedASMU rebased (ours): a device goes on from the fresh model, and updates are corrected for who is absent."""

    title = "FedASMU-R"
    kind = "asynchronous"
    name: str = "fedasmu-r"
    max_staleness: int | None = Field(99, ge=1, description="discard uploads staler than this")

    fresh: Literal["rebase", "mix", "none"] = Field("rebase", description="what a device does with a fresh model")
    beta: float = Field(0.5, gt=0, le=1, description="the fresh model's weight, with fresh = mix")
    slots: Literal["learned", "first", "middle", "last"] = Field("middle", description="when a device asks for it")
    epsilon: float = Field(0.1, ge=0, le=1, description="how often a learned slot is tried at random")
    q_rate: float = Field(0.1, gt=0, le=1, description="how fast learned slots are learned")
    q_discount: float = Field(0.5, ge=0, lt=1, description="what the next slot's prospects count for")

    calibrate: bool = Field(True, description="a device's own mixture of classes is not for the network to learn")
    correction: Literal["none", "dynamic", "cached"] = Field("cached", description="of client drift")
    rho: float | None = Field(None, ge=0, le=1, description="strength of cached updates; none: found by itself")
    stride: float = Field(
        1.0,
        ge=0,
        description="of cached updates: how much further to go where all devices agree; "
        "unless given 0 where calibrate = false",
    )
    alpha: float = Field(0.1, ge=0, description="strength of the dynamic regulariser")

    effective_staleness: bool = Field(True, description="a rebased upload counts as less stale")
    lambda0: float = Field(8.0, ge=0, description="the weight of an upload, over rounds and staleness")
    sigma0: float = Field(0.5, ge=0, description="how fast it falls with staleness")
    iota0: float = Field(0.1, ge=0, description="what remains of it in the long run")
    mu_alpha: float = Field(0.9, gt=0, description="scales the argument of alpha")
    clip: float | None = Field(1.5, gt=1, description="shorten updates to so many times the usual length; none: never")
    reach: float | None = Field(0.75, gt=0, description="how far along an update the model goes in all; none: as it is")

    @model_validator(mode="after")
    def _stand_where_devices_disagree(self) -> FedASMUR:
        """Devices that each learn their own classes first agree on so little that a stride can end a training."""
        if not self.calibrate and "stride" not in self.model_fields_set:
            self.__dict__["stride"] = 0.0  # the settings are frozen from here on
        return self

    @property
    def controls(self) -> ServerControls:
        return ServerControls(self.lambda0, self.sigma0, self.iota0)

    def corrected_by(self, federation: Federation) -> Correction:
        if self.correction == "cached":
            return CachedUpdates(self.rho, self.stride, federation)
        return DynamicRegulariser(self.alpha, federation) if self.correction == "dynamic" else Uncorrected()

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return GuardSettings(clip=self.clip).around(Rebasing(self, federation), federation.trainable)

    def learner(self) -> Learner:
        return Refreshing(self)
