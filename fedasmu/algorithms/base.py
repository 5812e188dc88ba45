"""The contracts of a method: one frozen settings object that makes a server half, a device half and a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.protocol import Memory, Model, Session, Task, Upload, Workload
from fedasmu.roster import Roster, Seconds
from fedasmu.schedule import Schedule
from fedasmu.section import Section
from fedasmu.storage.shelf import Shelf
from fedasmu.vector import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """What a server half may know about the fleet before training starts."""

    seed: int
    roster: Roster  # the devices: their examples, and how long a task takes them
    layout: Layout  # names and shapes of the tensors in the vector
    limit: int  # the most devices in flight
    budget: int  # uploads, in the whole run; a method that reads it says `knows_budget = True`
    batch: int  # examples in a step of a device's training
    epochs: int  # of a task
    shelf: Shelf  # on disk, for methods that keep a vector for every device

    @property
    def devices(self) -> int:
        return len(self.roster)

    @property
    def examples(self) -> Sequence[int]:
        """Training examples on each device."""
        return self.roster.examples

    @property
    def total(self) -> int:
        """Of all devices; it changes as real ones enrol, and when they come back with other data."""
        return self.roster.total

    @property
    def size(self) -> int:
        """Elements of the model's vector."""
        return self.layout.size

    @property
    def trainable(self) -> int:
        """How many of them, the first ones, are trainable."""
        return self.layout.trainable

    def workload(self, device: int) -> Workload:
        member = self.roster[device]
        return _workload(member.examples, self.batch, self.epochs, member.held)

    def seconds(self, device: int) -> Seconds:
        """A device's nominal download, training and upload time."""
        return self.roster[device].seconds


_workload = lru_cache(10_000)(Workload)  # asked for many times an upload, and most devices are alike


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The next global vector, and what the server wants remembered about how it came to be."""

    vector: Tensor
    weights: Sequence[float]  # of each upload
    details: Mapping[str, Any] = field(default_factory=dict)


class Aggregator(ABC):
    """The server half. It sees uploads that the server has accepted, and keeps whatever state the method needs."""

    note_type: type[Any] | None = None  # a frozen dataclass: `upload.note` is then one of these, or the upload refused

    @abstractmethod
    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate: ...

    def brief(self, device: int) -> Mapping[str, Any]:
        """What rides along with a task for this device: the `table` of a frozen dataclass, or any plain one."""
        return {}

    def share(self, note: Mapping[str, Any]) -> float:
        """How much of the model travels for a task with this note: less than 1 where only a sub-network is trained."""
        return 1.0

    def plausible(self, upload: Upload) -> bool:
        """Whether what a device says in its note can be true, as far as the method uses it. If not, it is refused."""
        return True

    def origin(self, upload: Upload) -> Tensor | None:
        """Where the way begins that the method takes from an upload. None: at the nearest model its device was sent."""
        return None

    def discarded(self, upload: Upload) -> None:  # noqa: B027 - an optional hook
        """An upload was too stale to aggregate; its note may still teach something."""

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must keep: a tree of plain values and tensors. The shelf is kept for you."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing to restore by default
        """Take back what `state` gave."""


class Learner(ABC):
    """The device half. It holds settings only: what a device must remember goes into its memory."""

    @abstractmethod
    def train(self, task: Task, work: Workload, memory: Memory) -> Session: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How many devices may work at once, as the recipe's pacing asks for."""

    count: int
    limit: int


class Algorithm(Section, ABC):
    """A method and its settings, all of them frozen. The first line of its docstring is its description."""

    title: ClassVar[str] = ""  # as papers write it; none: its name
    kind: ClassVar[Literal["synchronous", "asynchronous", "buffered"]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # further names, and the settings each stands for
    knows_budget: ClassVar[bool] = False  # if so, a longer run is another one from its first upload on
    own_objective: ClassVar[bool] = False  # if so, devices minimise something that has the cross-entropy in it

    name: str
    max_staleness: int | None = Field(None, ge=1, description="discard uploads staler than this; none: keep all")

    @property
    def pull_beyond(self) -> int | None:
        """The staleness at which the server calls a device's model in before it is finished; None: never."""
        return None

    @property
    def looks_inside(self) -> bool:
        """Whether a half of it tells the model's layers apart: then a simulation of times alone has a whole model too.

        For other methods, a vector without elements stands for it.
        """
        return False

    @classmethod
    def names(cls) -> list[str]:
        return [cls.model_fields["name"].default, *cls.presets]

    def attachments(self, layout: Layout) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The tensors in the note of every upload, by name: their type and shape. A server takes no others."""
        return {}

    @abstractmethod
    def schedule(self, pace: Pace) -> Schedule: ...

    @abstractmethod
    def aggregator(self, federation: Federation) -> Aggregator: ...

    @abstractmethod
    def learner(self) -> Learner: ...
