"""Ji Liu, Juncheng Jia, Tianshi Che, Chao Huo, Jiaxiang Ren, Yang Zhou, Huaiyu Dai, Dejing Dou: FedASMU: Efficient
asynchronous federated learning with dynamic staleness-aware model update. AAAI 2024.

The server weighs an upload by its staleness, with control parameters learned for each device; a device asks once, in
the middle of its training, for a fresh global model and merges it, at a moment and with a weight that are learned too.
The formulas are in weights.py, the moment of the request in slots.py; docs/algorithms/fedasmu.md lists every departure
from the printed paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms import weights
from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasync import polynomial
from fedasmu.algorithms.slots import QTable, SlotPolicy, heuristic, standardised
from fedasmu.algorithms.steps import stepped
from fedasmu.algorithms.weights import UNGUARDED, DeviceControls, Guard, ServerControls
from fedasmu.protocol import (
    Fetch,
    Memory,
    Model,
    Probe,
    Probed,
    Report,
    Session,
    Task,
    Train,
    Trained,
    Upload,
    Workload,
)
from fedasmu.schedule import Periodic
from fedasmu.vector import Layout


def own_displacement(upload: Upload, correction: bool = True) -> Tensor:
    """(E5): w^i - w_o - beta (w_g - w_o), what the device's own SGD added; the merge is subtracted."""
    moved = upload.report.vector - upload.base.vector
    beta = float(upload.report.note.get("beta") or 0.0)
    if correction and upload.fresh is not None and beta:
        moved.sub_(upload.fresh.vector - upload.base.vector, alpha=beta)
    return moved


class StalenessAware(Aggregator):
    """The server half: alpha from staleness with learned controls, and the meta model of the time slots."""

    def __init__(self, settings: FedASMU, federation: Federation) -> None:
        self.settings, self.federation, self.shelf = settings, federation, federation.shelf
        self.controls: dict[int, ServerControls] = {}
        self.records: dict[int, list[float]] = {}  # of a device's previous accepted upload: R', s', xi', log dilution
        self.seen: set[int] = set()  # devices that have merged a fresh model
        self.offered: dict[int, int] = {}
        self.log_dilution = [0.0]  # by version, where dilution is counted: the sum of log(1 - alpha) so far
        self.policy = settings.policy(federation) if settings.learns_slots else None

    def brief(self, device: int) -> Mapping[str, Any]:
        if self.policy is None or device in self.seen or self.policy.units(device) < 2:
            return {}
        self.offered[device] = self.policy.propose(device)
        return {"slot": self.offered[device]}

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        (upload,) = uploads
        self._teach(upload)
        if self.settings.server_weights == "polynomial":
            weight = self.settings.polynomial_alpha * polynomial(upload.staleness - 1, self.settings.polynomial_a)
            return Aggregate(self._mixed(current, upload, self._direction(current, upload), weight), [weight])
        return self._weighed(current, upload)

    def discarded(self, upload: Upload) -> None:
        self._teach(upload)

    def _weighed(self, current: Model, upload: Upload) -> Aggregate:
        settings, device = self.settings, upload.device
        controls = self.controls[device] = self._adjusted(upload)
        rounds = weights.round_term(current.version, settings.round_term == "printed")
        staleness = self._staleness(upload)
        xi = weights.xi(controls, rounds, staleness)
        alpha = settings.bounded_alpha(weights.squash(settings.mu_alpha, xi))
        direction = self._direction(current, upload)
        self.shelf.put(device, direction[: self.federation.trainable].to(settings.record_dtype))
        if settings.dilutes:
            self.log_dilution.append(self.log_dilution[-1] + math.log1p(-min(alpha, 1 - 1e-9)))
        self.records[device] = [rounds, staleness, xi, self.log_dilution[-1]]
        details = {"lambda": controls.lam, "sigma": controls.sigma, "iota": controls.iota, "xi": xi}
        return Aggregate(self._mixed(current, upload, direction, alpha), [alpha], details)

    def _adjusted(self, upload: Upload) -> ServerControls:
        """(A7) to (A13): one step of gradient descent on the controls, through the device's previous upload."""
        settings, device = self.settings, upload.device
        controls = self.controls.get(device, settings.server_controls)
        previous = self.shelf.get(device)
        if previous is None:
            return controls
        rounds, staleness, xi, diluted = self.records[device]
        projection = float(torch.dot(self._gradient(upload), previous.to(torch.float32)))
        if settings.dilutes:
            projection *= math.exp(self.log_dilution[upload.base.version] - diluted)
        outer = weights.squash_slope(settings.mu_alpha, xi) * projection
        inner = weights.xi_gradient(controls, rounds, staleness, settings.sigma_gradient == "printed")
        return ServerControls(
            settings.guard(settings.lambda0).moved(controls.lam, settings.lr_lambda, outer * inner[0]),
            settings.guard(settings.sigma0, 5.0).moved(controls.sigma, settings.lr_sigma, outer * inner[1]),
            settings.guard(settings.iota0, 1.0).moved(controls.iota, settings.lr_iota, outer * inner[2]),
        )

    def _gradient(self, upload: Upload) -> Tensor:
        """(A9): the device's gradient at the model it was sent, from how far its SGD went."""
        note, trainable = upload.report.note, self.federation.trainable
        sent = note.get("gradient")
        if isinstance(sent, Tensor):
            return sent
        moved = own_displacement(upload, self.settings.merge_correction)[:trainable]
        sign = 1.0 if self.settings.gradient_sign == "printed" else -1.0
        return moved * (sign / float(note["path"]))

    def _staleness(self, upload: Upload) -> float:
        note = upload.report.note
        if self.settings.effective_version == "original" or upload.fresh is None or not note.get("beta"):
            return upload.staleness
        merged_after, steps = int(note["merged_after"]), self.federation.workload(upload.device).steps
        stands_for = weights.interpolated_version(upload.base.version, upload.fresh.version, merged_after, steps)
        return upload.staleness - (stands_for - upload.base.version)

    def _direction(self, current: Model, upload: Upload) -> Tensor:
        """d w_{t+1} / d alpha"""
        if self.settings.update == "displacement":
            return own_displacement(upload)
        return upload.report.vector - current.vector

    def _mixed(self, current: Model, upload: Upload, direction: Tensor, weight: float) -> Tensor:
        """(A6), or with update = "displacement" w_t + alpha d"""
        if self.settings.update == "displacement":
            return stepped(current, direction, [upload], [weight], self.federation.trainable, weight)
        return torch.lerp(current.vector, upload.report.vector, weight)

    def _teach(self, upload: Upload) -> None:
        """The first reward of a device trains the meta model; from then on the device's own table decides."""
        reward = upload.report.note.get("reward")
        if reward is None or upload.device in self.seen:
            return
        self.seen.add(upload.device)
        slot = self.offered.pop(upload.device, None)
        if self.policy is not None and slot is not None:
            self.policy.learn(upload.device, slot, float(reward))

    def state(self) -> dict[str, Any]:
        return {
            "controls": {str(i): [c.lam, c.sigma, c.iota] for i, c in self.controls.items()},
            "records": {str(device): record for device, record in self.records.items()},
            "seen": sorted(self.seen),
            "offered": {str(device): slot for device, slot in self.offered.items()},
            "log_dilution": torch.tensor(self.log_dilution, dtype=torch.float64),
            "policy": self.policy.state() if self.policy else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.controls = {int(device): ServerControls(*values) for device, values in state["controls"].items()}
        self.records = {int(device): record for device, record in state["records"].items()}
        self.seen = set(state["seen"])
        self.offered = {int(device): slot for device, slot in state["offered"].items()}
        self.log_dilution = state["log_dilution"].tolist()
        if self.policy is not None:
            self.policy.restore(state["policy"])


class Merging(Learner):
    """The device half: train, ask for a fresh model at the slot, merge it, train on."""

    def __init__(self, settings: FedASMU) -> None:
        self.settings = settings

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        settings, start = self.settings, task.model.vector
        note: dict[str, Any] = {"path": task.lr * work.steps}
        if settings.server_gradient == "uploaded":
            probed: Probed = yield Probe(start, 0, gradient=True, free=True)
            note["gradient"] = probed.gradient
        units = settings.units(work)
        if not settings.merge or units < 2:
            trained: Trained = yield Train(start, range(work.steps), task.lr)
            return Report(trained.vector, work.examples, trained.loss, note)
        action, slot = self._slot(task, units, memory)
        cut = slot * (work.steps // units)
        first: Trained = yield Train(start, range(cut), task.lr)
        fresh: Model | None = yield Fetch()
        vector, note["slot"] = first.vector, slot
        if fresh is not None:
            vector, merged = yield from self._merge(vector, fresh, task, cut, memory)
            note |= {"merged_after": cut, **merged}
            self._learn(action, slot, merged["reward"], units, memory)
        second: Trained = yield Train(vector, range(cut, work.steps), task.lr)
        loss = (first.loss * cut + second.loss * (work.steps - cut)) / work.steps
        return Report(second.vector, work.examples, loss, note)

    def _merge(self, vector: Tensor, fresh: Model, task: Task, cut: int, memory: Memory) -> Any:
        """(A15) to (A22): merge, learn gamma and upsilon from the gradient, and give the reward."""
        settings, origin = self.settings, task.model.version
        controls = DeviceControls(memory.get("gamma", settings.gamma0), memory.get("upsilon", settings.upsilon0))
        before: Probed = yield Probe(vector, cut)
        towards = fresh.vector - vector
        if settings.device_order == "before_merge":
            probed: Probed = yield Probe(task.model.vector, cut, gradient=True)
            controls = self._adjusted(controls, fresh.version, origin, probed, towards)
        phi = settings.bounded_phi(weights.phi(controls, fresh.version, origin))
        beta = settings.bounded_beta(weights.squash(settings.mu_beta, phi))
        merged = torch.add(vector, towards, alpha=beta)
        after: Probed = yield Probe(merged, cut, gradient=True, free=True)
        if settings.device_order == "after_merge":
            controls = self._adjusted(controls, fresh.version, origin, after, towards)
        learned = {"gamma": controls.gamma, "upsilon": controls.upsilon}
        memory |= learned
        return merged, {"beta": beta, "reward": before.loss - after.loss, **learned}

    def _adjusted(
        self, controls: DeviceControls, fresh: int, origin: int, probed: Probed, towards: Tensor
    ) -> DeviceControls:
        """(A18) to (A21)"""
        settings, gradient = self.settings, probed.gradient
        assert gradient is not None
        projection = float(torch.dot(gradient, towards[: len(gradient)]))
        phi = settings.bounded_phi(weights.phi(controls, fresh, origin))
        outer = weights.squash_slope(settings.mu_beta, phi) * projection
        inner = weights.phi_gradient(controls, fresh, origin)
        return DeviceControls(
            settings.guard(settings.gamma0).moved(controls.gamma, settings.lr_gamma, outer * inner[0]),
            settings.guard(settings.upsilon0).moved(controls.upsilon, settings.lr_upsilon, outer * inner[1]),
        )

    def _slot(self, task: Task, units: int, memory: Memory) -> tuple[int, int]:
        """The action taken (-1 where none is) and the slot."""
        settings = self.settings
        if settings.slots == "fixed":
            return -1, max(1, min(units - 1, settings.fixed_slot))
        if settings.slots != "learned":
            return -1, heuristic(settings.slots, units)
        if "slot" in memory:
            return self._table(memory, units).choose(task.seed)
        return -1, int(task.note["slot"])

    def _learn(self, action: int, slot: int, reward: float, units: int, memory: Memory) -> None:
        if self.settings.slots != "learned":
            return
        if action < 0:
            memory["slot"] = slot
        elif math.isfinite(reward):
            self._table(memory, units).learn(action, slot, reward)

    def _table(self, memory: Memory, units: int) -> QTable:
        return QTable(memory, units, self.settings.q_rate, self.settings.q_discount, self.settings.epsilon)


class FedASMU(Algorithm):
    """Staleness-aware weights learned on the server, and a fresh model merged in the middle of a device's training."""

    kind = "asynchronous"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedasmu-da": {"server_weights": "polynomial"},
        "fedasmu-fa": {"merge": False},
        "fedasmu-0": {"server_weights": "polynomial", "merge": False},
        "fedasmu-h1": {"slots": "first"},
        "fedasmu-h2": {"slots": "middle"},
        "fedasmu-h3": {"slots": "last"},
        "fedasmu-d": {"update": "displacement"},
        "fedasmu-paper": {
            "lambda0": 1.0,
            "round_term": "printed",
            "sigma_gradient": "printed",
            "gradient_sign": "printed",
            "merge_correction": False,
            "slot_unit": "epoch",
            "meta_select": "eps_greedy",
        },
        "fedasmu-authors": {
            "lambda0": 1.0,
            "server_gradient": "uploaded",
            "effective_version": "interpolated",
            "device_order": "before_merge",
        },
    }

    name: str = "fedasmu"
    max_staleness: int | None = Field(99, ge=1, description="discard uploads staler than this")
    update: Literal["model", "displacement"] = Field(
        "model", description="mix the model in, or only what SGD added to it"
    )

    server_weights: Literal["dynamic", "polynomial"] = Field(
        "dynamic", description="polynomial: FedAsync's, for ablation"
    )
    polynomial_alpha: float = Field(0.6, gt=0, le=1, description="of the polynomial weights")
    polynomial_a: float = Field(0.5, ge=0, description="exponent of the polynomial weights")
    lambda0: float = Field(8.0, ge=0, description="where the weight of an upload begins, over rounds and staleness")
    sigma0: float = Field(0.5, ge=0, description="how fast it falls with staleness")
    iota0: float = Field(0.1, ge=0, description="what remains of it in the long run")
    mu_alpha: float = Field(0.9, gt=0, description="scales the argument of alpha")
    lr_lambda: float = Field(1e-4, ge=0, description="how fast lambda is learned")
    lr_sigma: float = Field(1e-4, ge=0, description="how fast sigma is learned")
    lr_iota: float = Field(1e-4, ge=0, description="how fast iota is learned")
    round_term: Literal["shifted", "printed"] = Field("shifted", description="sqrt(t + 1), or sqrt(max(t, 1))")
    sigma_gradient: Literal["correct", "printed"] = "correct"
    gradient_sign: Literal["correct", "printed"] = "correct"
    server_gradient: Literal["displacement", "uploaded"] = Field(
        "displacement", description="uploaded: doubles the upload"
    )
    merge_correction: bool = Field(True, description="leave the merge out of the gradient estimate")
    dilution: bool = Field(
        False, description="count how far others' uploads have diluted a device's own; update = model only"
    )
    effective_version: Literal["original", "interpolated"] = "original"
    record: Literal["float16", "float32"] = Field(
        "float16", description="how a device's last direction is kept on disk"
    )
    guards: bool = Field(True, description="keep the learned numbers in their ranges")

    merge: bool = Field(True, description="ask for a fresh model during training")
    gamma0: float = Field(2.0, ge=0, description="where the weight of a fresh model begins, over rounds")
    upsilon0: float = Field(1.0, ge=0, description="how much newer it must be to count")
    mu_beta: float = Field(1.0, gt=0, description="scales the argument of beta")
    lr_gamma: float = Field(1e-4, ge=0, description="how fast gamma is learned")
    lr_upsilon: float = Field(1e-4, ge=0, description="how fast upsilon is learned")
    device_order: Literal["after_merge", "before_merge"] = Field(
        "after_merge", description="when gamma and upsilon move"
    )

    slots: Literal["learned", "first", "middle", "last", "fixed"] = Field("learned", description="when to ask")
    fixed_slot: int = Field(1, ge=1, description="units done when a device asks, with slots = fixed")
    slot_unit: Literal["step", "epoch"] = Field("step", description="what slots are counted in")
    epsilon: float = Field(0.1, ge=0, le=1, description="how often a slot is tried at random")
    q_rate: float = Field(0.1, gt=0, le=1, description="phi: how fast the device's table learns")
    q_discount: float = Field(0.9, ge=0, lt=1, description="psi: what the next slot's prospects count for")
    lr_policy: float = Field(1e-3, ge=0, description="of the meta model")
    rho: float = Field(0.1, ge=0, le=1, description="how fast the meta model's baseline follows the rewards")
    meta_select: Literal["eps_greedy", "sample"] = Field("sample", description="how the meta model chooses")
    reward_norm: bool = Field(False, description="divide the meta model's advantages by their running size")

    @property
    def server_controls(self) -> ServerControls:
        return ServerControls(self.lambda0, self.sigma0, self.iota0)

    @property
    def record_dtype(self) -> torch.dtype:
        return torch.float16 if self.record == "float16" else torch.float32

    @property
    def dilutes(self) -> bool:
        """In the displacement form no upload overwrites another: there is nothing to count."""
        return self.dilution and self.update == "model"

    @property
    def learns_slots(self) -> bool:
        return self.merge and self.slots == "learned"

    def guard(self, initial: float, high: float = 10.0) -> Guard:
        """The learned number stays between 0 and `high`, or four times where it began if that is more."""
        return Guard(0.0, max(high, 4.0 * initial)) if self.guards else UNGUARDED

    def bounded_alpha(self, alpha: float) -> float:
        highest = 1.0 if self.update == "displacement" else 0.95
        return max(1e-3, min(highest, alpha)) if self.guards else alpha

    def bounded_phi(self, phi: float) -> float:
        """Not negative: below -1 / mu, what should be no merge at all would turn into a nearly complete one."""
        return max(0.0, phi) if self.guards else phi

    def bounded_beta(self, beta: float) -> float:
        return min(0.95, beta) if self.guards else beta

    def units(self, work: Workload) -> int:
        return work.steps if self.slot_unit == "step" else work.epochs

    def policy(self, federation: Federation) -> SlotPolicy:
        return SlotPolicy(
            features=standardised(federation),
            units=lambda device: self.units(federation.workload(device)),
            seed=federation.seed,
            rate=self.lr_policy,
            rho=self.rho,
            epsilon=self.epsilon,
            sample=self.meta_select == "sample",
            normalise=self.reward_norm,
        )

    def attachments(self, layout: Layout) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {"gradient": (torch.float32, (layout.trainable,))} if self.server_gradient == "uploaded" else {}

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return StalenessAware(self, federation)

    def learner(self) -> Learner:
        return Merging(self)
