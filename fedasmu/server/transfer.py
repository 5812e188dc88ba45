"""How models travel between the server and its devices: whole, or as displacements from what both sides have.

What a device has is the last model that it was sent for its last delivered task, as it arrived there. The server keeps
it from the delivery on, as the device does: where a task is lost, neither counts on what was sent for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from pydantic import Field
from torch import Tensor

from fedasmu.encoding.displacement import Reference
from fedasmu.encoding.rounding import CODES, Code, Precision, part
from fedasmu.protocol import Model, Report
from fedasmu.section import Section
from fedasmu.storage.shelf import Shelf
from fedasmu.vector import Layout


class Sent(NamedTuple):
    model: Model  # as it arrives
    part: float = 1.0  # of a whole model's bytes


class Transfer(Protocol):
    part: float  # of a whole model's bytes that a model usually takes

    def reference(self, model: Model) -> Reference | None:
        """A model that a task's device was sent, to tell others from; None: models travel whole."""

    def label(self, device: int) -> str:
        """Of what a device has from before its task; empty: nothing that the server knows of."""

    def held(self, device: int) -> Reference | None:
        """That model itself."""

    def keep(self, device: int, task: int, model: Model) -> None:
        """A device has delivered a task, and this is the last model that it was sent for it."""

    def forget(self, device: int) -> None:
        """A device has said that it does not have it."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


class Whole:
    """Every model in float32, whatever the other side has."""

    part = 1.0

    def reference(self, model: Model) -> Reference | None:
        return None

    def label(self, device: int) -> str:
        return ""

    def held(self, device: int) -> Reference | None:
        return None

    def keep(self, device: int, task: int, model: Model) -> None:
        pass

    def forget(self, device: int) -> None:
        pass

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        pass


class Displaced:
    """Displacements in a code. What devices hold is on a shelf, that of those who delivered last."""

    def __init__(self, layout: Layout, code: Code, shelf: Shelf, most: int) -> None:
        self._layout, self._code, self._shelf, self._most = layout, code, shelf, most
        self.part = part(code, layout)
        self._labels: dict[int, str] = {}  # of what each device has, the one that delivered last at the end

    def reference(self, model: Model) -> Reference | None:
        return Reference(model.vector, self._layout, self._code, str(model.version))

    def label(self, device: int) -> str:
        return self._labels.get(device, "")

    def held(self, device: int) -> Reference | None:
        vector = self._shelf.get(_key(device)) if device in self._labels else None
        return None if vector is None else Reference(vector, self._layout, self._code, self._labels[device])

    def keep(self, device: int, task: int, model: Model) -> None:
        self._labels.pop(device, None)
        self._labels[device] = label(task, model)
        self._shelf.put(_key(device), model.vector)
        if len(self._labels) > self._most:
            self.forget(next(iter(self._labels)))

    def forget(self, device: int) -> None:
        if self._labels.pop(device, None) is not None:
            self._shelf.drop(_key(device))

    def state(self) -> Any:
        return list(self._labels.items())

    def restore(self, state: Any) -> None:
        self._labels = dict(state)


class TransferSettings(Section):
    precision: Precision = Field(
        "float32", description="of models on their way; below float32: of their difference from what both sides have"
    )
    held: int = Field(
        1000,
        ge=0,
        description="devices whose last model the server keeps for differences, on its disk; others get it whole",
    )

    def between(self, layout: Layout, shelf: Shelf) -> Transfer:
        code = CODES.get(self.precision)
        return Whole() if code is None else Displaced(layout, code, shelf, self.held)

    def bytes(self, layout: Layout) -> int:
        """What a model weighs on its way, usually."""
        code = CODES.get(self.precision)
        return layout.bytes if code is None else round(part(code, layout) * layout.bytes)


def sent(model: Model, reference: Reference | None) -> Sent:
    """A model as it arrives where the reference is, and what that takes."""
    way = None if reference is None else reference.to(model.vector)
    if reference is None or way is None:
        return Sent(model)
    return Sent(Model(model.version, reference.plus(way)), reference.part)


def arriving(report: Report, reference: Reference | None) -> tuple[Report, float]:
    """A report as it arrives, and the part of a whole model's bytes that its model takes."""
    way = reference.to(report.vector) if reference is not None and isinstance(report.vector, Tensor) else None
    if reference is None or way is None:
        return report, 1.0
    return replace(report, vector=reference.plus(way)), reference.part


def label(task: int, model: Model) -> str:
    """Of what a device has after a task."""
    return f"{task}.{model.version}"


def _key(device: int) -> str:
    return f"held/{device}"
