"""Who is here: challenges that are good once and for a minute, and visits, whose requests are good once each.

No clock of a device is believed or needed. Time is an argument, and monotonic. All of it is in memory: after a restart
of the server no visit is known, and devices say hello again.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from fedasmu.network.keys import encoded

SECONDS = 60.0  # that a challenge is good for
WIDTH = 64  # requests that may overtake each other


class Challenges:
    """Stateless until one is used: a flood of questions costs no memory."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def new(self, now: float) -> str:
        nonce = f"{int(now * 1000)}-{secrets.token_hex(16)}"
        return f"{nonce}.{self._seal(nonce)}"

    def spend(self, challenge: str, now: float) -> bool:
        """Whether it is ours, young and not used before. From now on it is used."""
        nonce, _, seal = challenge.rpartition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(nonce).encode()):  # from here on it is our own
            return False
        made = int(nonce.partition("-")[0]) / 1000
        for old in [one for one, until in self._used.items() if until < now]:
            del self._used[old]
        if not made <= now <= made + SECONDS or challenge in self._used:
            return False
        self._used[challenge] = made + SECONDS
        return True

    def _seal(self, nonce: str) -> str:
        return encoded(hmac.digest(self._secret, nonce.encode(), "sha256"))


@dataclass(slots=True)
class Window:
    """Sequence numbers that were seen, as WireGuard keeps them: each is good once, old ones not at all."""

    highest: int = -1
    seen: int = 0  # bit k: highest - k was seen

    def accept(self, number: int) -> bool:
        if number < 0 or number <= self.highest - WIDTH:
            return False
        if number > self.highest:
            self.seen = ((self.seen << min(number - self.highest, WIDTH)) | 1) & ((1 << WIDTH) - 1)
            self.highest = number
            return True
        bit = 1 << (self.highest - number)
        if self.seen & bit:
            return False
        self.seen |= bit
        return True


@dataclass(slots=True)
class Visit:
    id: str
    public: bytes
    window: Window = field(default_factory=Window)


class Visits:
    """The newest visit of each device. A second one with the same key ends the first."""

    def __init__(self) -> None:
        self._visits: dict[int, Visit] = {}

    def open(self, device: int, public: bytes) -> str:
        visit = Visit(secrets.token_hex(16), public)
        self._visits[device] = visit
        return visit.id

    def close(self, device: int) -> None:
        self._visits.pop(device, None)

    def find(self, device: int, visit: str) -> Visit | None:
        found = self._visits.get(device)
        return found if found is not None and hmac.compare_digest(found.id.encode(), visit.encode()) else None

    def __len__(self) -> int:
        return len(self._visits)
