"""When each device was there: a window from a sign of life until the device has been silent for long.

Time is an argument: seconds of this run. The windows are a trace that a simulation can follow.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedasmu.run.measured import Window


class Presence:
    def __init__(self, silence: float) -> None:
        self.silence = silence  # seconds without a sign of life, after which a device was away
        self.seen: dict[int, float] = {}  # when a device last gave a sign of life
        self._since: dict[int, float] = {}  # when its window began
        self._closed: list[Window] = []

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self._closed) + len(self._since)

    def sign(self, device: int, now: float) -> None:
        if device not in self.seen or now - self.seen[device] > self.silence:
            self._close(device)
            self._since[device] = now
        self.seen[device] = now

    def alive(self, now: float, seconds: float) -> int:
        """How many devices have given a sign of life in the last seconds."""
        return sum(now - seen <= seconds for seen in self.seen.values())

    def windows(self, now: float) -> list[Window]:
        """All of them. Whoever has not been silent for long is there until now."""
        return [*self._closed, *((device, since, self._until(device, now)) for device, since in self._since.items())]

    def restore(self, windows: Iterable[Window]) -> None:
        """What an earlier process of the same run saw. Whoever comes back soon has not been away."""
        for device, since, until in sorted(windows, key=lambda window: window[1]):
            self._close(device)
            self._since[device], self.seen[device] = since, until

    def _until(self, device: int, now: float) -> float:
        seen = self.seen[device]
        return now if now - seen <= self.silence else seen

    def _close(self, device: int) -> None:
        if device in self._since:
            self._closed.append((device, self._since.pop(device), self.seen[device]))
