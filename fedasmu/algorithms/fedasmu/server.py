"""The server half of FedASMU: (1), (2) and (3), and the meta model of the time slots."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Federation
from fedasmu.algorithms.fedasmu import formulas
from fedasmu.algorithms.fedasmu.formulas import HIGHEST_BETA, ServerControls
from fedasmu.algorithms.fedasmu.notes import MergeNote, SlotBrief, gradient_fits, merge_fits
from fedasmu.algorithms.fedasync import polynomial
from fedasmu.algorithms.steps import stepped
from fedasmu.encoding.note import table
from fedasmu.protocol import Model, Upload
from fedasmu.vector import blocks

if TYPE_CHECKING:
    from fedasmu.algorithms.fedasmu.settings import FedASMU


class StalenessAware(Aggregator):
    """The server half: alpha from staleness with learned controls, and the meta model of the time slots."""

    note_type = MergeNote

    def __init__(self, settings: FedASMU, federation: Federation) -> None:
        self.settings, self.federation, self.shelf = settings, federation, federation.shelf
        self.controls: dict[int, ServerControls] = {}
        self.records: dict[int, list[float]] = {}  # of a device's previous accepted upload: R', s', xi', log dilution
        self.seen: set[int] = set()  # devices that have merged a fresh model
        self.offered: dict[int, int] = {}
        self.log_dilution = 0.0  # where dilution is counted: the sum of log(1 - alpha) so far
        self.begun: dict[int, float] = {}  # what it was when a device's task began
        self.policy = settings.policy(federation) if settings.learns_slots else None
        bounds = (settings.lambda0, 10.0), (settings.sigma0, 5.0), (settings.iota0, 1.0)
        self._guards = [settings.guard(initial, high) for initial, high in bounds]

    def brief(self, device: int) -> Mapping[str, Any]:
        if self.settings.dilutes:
            self.begun[device] = self.log_dilution
        if self.policy is None or device in self.seen or self.policy.units(device) < 2:
            return table(SlotBrief())
        self.offered[device] = self.policy.propose(device)
        return table(SlotBrief(self.offered[device]))

    def plausible(self, upload: Upload) -> bool:
        settings, work = self.settings, self.federation.workload(upload.device)
        note: MergeNote = upload.note
        if settings.server_gradient == "uploaded":
            trained = upload.report.vector[: self.federation.trainable]
            if not gradient_fits(note.gradient, len(trained)):
                return False
        low, high = (0.0, HIGHEST_BETA) if settings.guards else (-sys.float_info.max, sys.float_info.max)
        return merge_fits(note, work.steps, settings.units(work), low, high)

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        self._teach(upload)
        if self.settings.server_weights == "polynomial":
            weight = self.settings.polynomial_alpha * polynomial(
                self._staleness(upload) - 1, self.settings.polynomial_a
            )
            return Aggregate(self._mixed(current, upload, weight)[0], [weight])
        return self._weighed(current, upload)

    def discarded(self, upload: Upload) -> None:
        self._teach(upload)

    def _weighed(self, current: Model, upload: Upload) -> Aggregate:
        settings, device = self.settings, upload.device
        controls = self.controls[device] = self._adjusted(upload)
        rounds = formulas.round_term(current.version, settings.round_term == "printed")
        staleness = self._staleness(upload)
        xi = formulas.xi(controls, rounds, staleness)
        alpha = settings.bounded_alpha(formulas.squash(settings.mu_alpha, xi))
        vector, direction = self._mixed(current, upload, alpha)
        self.shelf.put(device, direction)
        if settings.dilutes:
            self.log_dilution += math.log1p(-min(alpha, 1 - 1e-9))
        self.records[device] = [rounds, staleness, xi, self.log_dilution]
        details = {"lambda": controls.lam, "sigma": controls.sigma, "iota": controls.iota, "xi": xi}
        return Aggregate(vector, [alpha], details)

    def _adjusted(self, upload: Upload) -> ServerControls:
        """(3): one step of gradient descent on the controls, through the device's previous upload."""
        settings, device = self.settings, upload.device
        controls = self.controls.get(device) or settings.server_controls
        previous = self.shelf.get(device)
        if previous is None:
            return controls
        rounds, staleness, xi, diluted = self.records[device]
        projection = self._projection(upload, previous)
        if settings.dilutes:
            projection *= math.exp(self.begun[device] - diluted)
        outer = formulas.squash_slope(settings.mu_alpha, xi) * projection
        inner = formulas.xi_gradient(controls, rounds, staleness, settings.sigma_gradient == "printed")
        lam, sigma, iota = self._guards
        return ServerControls(
            lam.moved(controls.lam, settings.lr_lambda, outer * inner[0]),
            sigma.moved(controls.sigma, settings.lr_sigma, outer * inner[1]),
            iota.moved(controls.iota, settings.lr_iota, outer * inner[2]),
        )

    def _projection(self, upload: Upload, previous: Tensor) -> float:
        """Of the gradient on where the device's previous upload moved the model."""
        settings = self.settings
        if settings.server_gradient == "uploaded":
            pairs = blocks(previous, upload.note.gradient)
            return sum(torch.dot(sent, before.to(torch.float32)).item() for before, sent in pairs)
        path = upload.lr * self.federation.workload(upload.device).steps
        printed = settings.gradient_sign == "printed"
        return formulas.projection(upload, previous, path, settings.merge_correction, printed)

    def origin(self, upload: Upload) -> Tensor | None:
        return formulas.displaced_from(upload) if self.settings.update == "displacement" else None

    def _staleness(self, upload: Upload) -> float:
        if self.settings.effective_version == "original":
            return upload.staleness
        return formulas.effective_staleness(upload, self.federation.workload(upload.device).steps)

    def _mixed(self, current: Model, upload: Upload, weight: float) -> tuple[Tensor, Tensor]:
        """(1): (1 - alpha) w_t + alpha w^i; with update = "displacement" w_t + alpha d. And d w_{t+1} / d alpha of the
        trainable part, as it is recorded.
        """
        trainable, dtype = self.federation.trainable, self.settings.record_dtype
        if self.settings.update == "displacement":
            direction = formulas.own_displacement(upload)
            vector = stepped(current, direction, [upload], [weight], trainable, weight)
            return vector, direction[:trainable].to(dtype)
        old, new = current.vector, upload.report.vector
        mixed, record = torch.empty_like(old), torch.empty_like(old, dtype=dtype)
        for vector, before, sent, moved in blocks(mixed, old, new, record):
            torch.lerp(before, sent, weight, out=vector)
            moved.copy_(sent - before)
        return mixed, record if trainable >= record.numel() else record[:trainable]

    def _teach(self, upload: Upload) -> None:
        """The first reward of a device trains the meta model; from then on the device's own table decides."""
        note: MergeNote = upload.note
        if note.reward is None or upload.device in self.seen:
            return
        self.seen.add(upload.device)
        slot = self.offered.pop(upload.device, None)
        if self.policy is not None and slot is not None:
            self.policy.learn(upload.device, slot, float(note.reward))

    def state(self) -> dict[str, Any]:
        return {
            "controls": {device: [one.lam, one.sigma, one.iota] for device, one in self.controls.items()},
            "records": self.records,
            "seen": sorted(self.seen),
            "offered": self.offered,
            "log_dilution": self.log_dilution,
            "begun": self.begun,
            "policy": self.policy.state() if self.policy else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.controls = {device: ServerControls(*values) for device, values in state["controls"].items()}
        self.records, self.offered = dict(state["records"]), dict(state["offered"])
        self.seen = set(state["seen"])
        self.log_dilution, self.begun = state["log_dilution"], dict(state["begun"])
        if self.policy is not None:
            self.policy.restore(state["policy"])
