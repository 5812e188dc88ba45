"""Whether a computation is worth handing to a worker process."""

from __future__ import annotations

from collections import defaultdict

from fedasmu.protocol import Computation

FIRST_LOOK = 16  # computations of a kind that go to a worker before their cost is believed
WORTH = 5.0  # times what both halves of handing over take: waking each other costs several times as much again
WEIGHT = 0.1  # of the newest observation in a mean


class Costs:
    """What computations take, wherever they are done, and what giving one to a worker or taking its answer takes:
    moving means, in seconds of the processor.
    """

    def __init__(self) -> None:
        self.handing = 0.0
        self.computing: defaultdict[type, float] = defaultdict(float)
        self._seen: defaultdict[type, int] = defaultdict(int)

    def handed(self, seconds: float) -> None:
        self.handing += WEIGHT * (seconds - self.handing)

    def computed(self, kind: type, seconds: float) -> None:
        self.computing[kind] += WEIGHT * (seconds - self.computing[kind]) if self.computing[kind] else seconds

    def cheaper_here(self, command: Computation) -> bool:
        """A worker would save too little, or nothing."""
        kind = type(command)
        self._seen[kind] += 1
        return self._seen[kind] > FIRST_LOOK and 0.0 < self.computing[kind] < WORTH * 2 * self.handing
