"""The roster: what the server half knows of the devices. A simulation draws it; a service fills it as they enrol.

It is the server's own knowledge: no method weighs an upload by what the device says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Seconds(NamedTuple):
    """How long a whole task takes a device, nominally."""

    download: float
    training: float
    upload: float


@dataclass(frozen=True, slots=True)
class Member:
    """A device."""

    examples: int  # that it trains on
    seconds: Seconds
    held: int = 0  # examples that it measures on


class Roster:
    """The devices by their numbers, from 0 on."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = list(members)
        self.examples = [member.examples for member in self._members]
        self.total = sum(self.examples)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, device: int) -> Member:
        return self._members[device]

    def enrol(self, device: int, member: Member) -> None:
        """A device takes its place, or tells what has changed."""
        self.total += member.examples - self._members[device].examples
        self._members[device] = member
        self.examples[device] = member.examples
