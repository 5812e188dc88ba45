"""Some fleets never deliver anything: a run with one of these ends with a reason instead of never."""

from __future__ import annotations

from dataclasses import dataclass

from fedasmu.errors import UserError

TICKS, LOSSES = 1_000_000, 100_000  # in a row, without any upload


@dataclass
class Patience:
    ticks: int = 0
    losses: int = 0

    def renew(self) -> None:
        """Something was delivered."""
        self.ticks = self.losses = 0

    def tick(self, now: float) -> None:
        self.ticks += 1
        if self.ticks >= TICKS:
            raise UserError(
                f"nothing was delivered during {TICKS:,} periods in a row, up to {now:g} virtual seconds: the devices "
                "are never there, or take too long for pacing.period; see fleet.availability, fleet.trace, the fleet's "
                "speeds and links"
            )

    def loss(self, now: float) -> None:
        self.losses += 1
        if self.losses >= LOSSES:
            raise UserError(
                f"{LOSSES:,} tasks in a row were lost, up to {now:g} virtual seconds: the devices go offline or die "
                "before they can deliver; see fleet.availability, fleet.cycle, fleet.trace and fleet.dropout"
            )
