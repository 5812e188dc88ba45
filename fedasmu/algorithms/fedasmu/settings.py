"""FedASMU's settings, and the names of its ablations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasmu.device import Merging
from fedasmu.algorithms.fedasmu.formulas import HIGHEST_BETA, UNGUARDED, Guard, ServerControls, bounded
from fedasmu.algorithms.fedasmu.server import StalenessAware
from fedasmu.algorithms.fedasmu.slots import SlotPolicy, standardised
from fedasmu.protocol import Workload
from fedasmu.schedule import Periodic
from fedasmu.vector import Layout


class FedASMU(Algorithm):
    """Staleness-aware weights learned on the server, and a fresh model merged in the middle of a device's training."""

    title = "FedASMU"
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
    sigma_gradient: Literal["correct", "printed"] = Field("correct", description="the derivative by sigma")
    gradient_sign: Literal["correct", "printed"] = Field("correct", description="of the gradient estimate")
    server_gradient: Literal["displacement", "uploaded"] = Field(
        "displacement", description="uploaded: doubles the upload"
    )
    merge_correction: bool = Field(True, description="leave the merge out of the gradient estimate")
    dilution: bool = Field(
        False, description="count how far others' uploads have diluted a device's own; update = model only"
    )
    effective_version: Literal["original", "interpolated"] = Field(
        "original", description="interpolated: a merged upload counts as less stale"
    )
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
        return bounded(max(high, 4.0 * initial)) if self.guards else UNGUARDED

    def bounded_alpha(self, alpha: float) -> float:
        highest = 1.0 if self.update == "displacement" else 0.95
        return max(1e-3, min(highest, alpha)) if self.guards else alpha

    def bounded_phi(self, phi: float) -> float:
        """Not negative: below -1 / mu, what should be no merge at all would turn into a nearly complete one."""
        return max(0.0, phi) if self.guards else phi

    def bounded_beta(self, beta: float) -> float:
        return min(HIGHEST_BETA, beta) if self.guards else beta

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
