"""The vocabulary of server and devices.

A device's work is a *session*: a generator that yields commands (`Train`, `Probe`, `Evaluate`, `Fetch`, `Poll`) and is
sent their results. Whoever drives it supplies them: the virtual clock in a simulation, the network on a real device.
The session itself therefore knows no clock, no process and no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType
from typing import Any

from torch import Tensor, nn

Memory = dict[str, Any]
"""What a device remembers from one task to the next: numbers, strings, lists, dicts and tensors."""

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A loss of its own: (network, inputs, targets) -> scalar. Without one, training minimises cross-entropy."""


REMARKS = (int, float, str, NoneType)  # what of a note goes into the record


@dataclass(frozen=True, slots=True)
class Model:
    """A version of the global model. Its vector is never written to: tasks in flight share it."""

    version: int
    vector: Tensor
    _writes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_writes", self.vector._version)

    @property
    def intact(self) -> bool:
        """Whether no operation of PyTorch has written into the vector since."""
        return self.vector._version == self._writes


@dataclass(frozen=True, slots=True)
class Task:
    """Server -> device: train this model."""

    id: int
    device: int
    model: Model
    lr: float
    seed: int = 0  # of everything random in this task
    note: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0  # of the model that travels: below 1 for a sub-network


@dataclass(frozen=True)
class Workload:
    """How much there is to do for one task on one device."""

    examples: int
    batch: int
    epochs: int
    held: int = 0  # examples besides, that the device does not train on but measures on

    @cached_property
    def steps_per_epoch(self) -> int:
        return -(-self.examples // self.batch)

    @cached_property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def samples(self, steps: range) -> int:
        """How many examples these SGD steps see: the last batch of an epoch may be a partial one."""
        missing = self.steps_per_epoch * self.batch - self.examples
        partial = steps.stop // self.steps_per_epoch - steps.start // self.steps_per_epoch
        return len(steps) * self.batch - partial * missing


@dataclass(frozen=True, slots=True)
class Train:
    """SGD from `vector` over these steps of the task. Answered by `Trained`.

    A task's steps are numbered through all its epochs, and a step's batch depends on the task alone: a training cut in
    two gives the same bits as one in a piece, unless the network has dropout, which is seeded anew for each command.
    Each step is w -= lr * mask * (gradient + pull * (w - anchor)), or what the run's optimiser makes of it.
    """

    vector: Tensor
    steps: range
    lr: float
    pull: float = 0.0
    anchor: Tensor | None = None  # None: the vector that this training starts from
    mask: Tensor | None = None
    objective: Objective | None = None
    calibrated: bool = False  # what `training.calibration` makes of the device's classes is added to its outputs
    work: float = 1.0  # share of the whole network's work that a step takes: below 1 for a sub-network
    state: Tensor | None = None  # of the optimiser, from the task's training before: who drives the session fills it in

    def __post_init__(self) -> None:
        if self.calibrated and self.objective is not None:
            raise ValueError("Train: it is the cross-entropy that can be calibrated, not an objective of one's own")


@dataclass(frozen=True, slots=True)
class Trained:
    vector: Tensor
    loss: float  # mean over the steps
    state: Tensor | None = None  # of the optimiser, None if it has none


@dataclass(frozen=True, slots=True)
class Probe:
    """The loss, and if wanted its gradient, at `vector` on the mini-batch of one step. Answered by `Probed`."""

    vector: Tensor
    step: int
    gradient: bool = False
    free: bool = False  # the gradient is the very one that the next training step takes, so it costs no time
    between: tuple[Tensor, Tensor] | None = None  # two vectors: of the gradient only the slope that way is wanted


@dataclass(frozen=True, slots=True)
class Probed:
    loss: float
    gradient: Tensor | None = None
    slope: float | None = None  # <gradient, b - a> of the two vectors a, b that the probe named


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask the server for a model newer than the task's. Answered by a `Model`, or None when there is nothing newer."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Look whether the server wants the model now, unfinished as it is. Answered by a bool, at once and at no cost."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Loss and metric of `vector`: for a device that holds examples out, on these; else on the test data. Answered
    by `Evaluated`.
    """

    vector: Tensor
    subset: int = 0  # of the test data: so many of them, always the same ones; 0: all


@dataclass(frozen=True, slots=True)
class Evaluated:
    loss: float  # mean over the examples
    score: float  # by the run's metric: its accuracy, unless the recipe names another
    examples: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Device -> server: the outcome of a task. Tensors in the note are sent along and cost bytes."""

    vector: Tensor
    examples: int
    loss: float = 0.0
    note: Mapping[str, Any] = field(default_factory=dict)
    measured: Evaluated | None = None  # the model that was sent, on what the device holds out

    @property
    def extra_bytes(self) -> int:
        """What is sent besides the model."""
        return sum([value.nbytes for value in self._noted.values() if isinstance(value, Tensor)])

    @property
    def remarks(self) -> dict[str, Any]:
        """What of the note is worth a line in the record: numbers and texts."""
        return {key: value for key, value in self._noted.items() if isinstance(value, REMARKS)}

    @property
    def _noted(self) -> Mapping[str, Any]:
        """The note, if it is one: whatever made this report is not believed."""
        return self.note if isinstance(self.note, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Upload:
    """A report as the server's ledger knows it: versions and staleness are the server's own, never the device's."""

    task: int
    device: int
    base: Model  # what the device was sent
    fresh: Model | None  # what it was sent when it asked again
    staleness: int  # versions since `base`, plus one: 1 is perfectly fresh
    report: Report
    lr: float  # the task's
    note: Any = None  # the report's, as the method's own type: see `Aggregator.note_type`


Computation = Train | Probe | Evaluate
Command = Train | Probe | Evaluate | Fetch | Poll
Session = Generator[Command, Any, Report]
