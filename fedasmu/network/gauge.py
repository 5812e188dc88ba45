"""What a service tells whoever watches: a file of its own in the run directory, written at most once a second.

service.json    how it stands at this moment: devices, leases, bytes, refusals, disk, recovery
presence.csv    when each device was there: a trace that a simulation can follow
links.csv       what of each delivered task was its upload, and what its training

They are for people and may be lost with the power: nothing of the run is read from them.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from fedasmu.errors import UserError
from fedasmu.network.coordinator import Coordinator
from fedasmu.network.deadline import DEVICE
from fedasmu.network.door import Door
from fedasmu.network.replies import CODE
from fedasmu.run import links
from fedasmu.run.profiles import rows

PAUSE = 1.0  # seconds between two writings, and for every thousand devices one more
FILE, TRACE = "service.json", "presence.csv"


class Gauge:
    def __init__(self, folder: Path, coordinator: Coordinator, recovered: int) -> None:
        self.folder, self.coordinator, self.recovered = folder, coordinator, recovered
        self.refusals: Counter[str] = Counter()  # by the reply's code; by its status where it has none
        self.requests = 0
        self.down: dict[int, int] = defaultdict(int)  # bytes in replies to a device
        self.up: dict[int, int] = defaultdict(int)  # and in its requests
        self._written = -PAUSE
        with contextlib.suppress(UserError, KeyError, TypeError, ValueError):
            found = rows(folder / TRACE) if (folder / TRACE).is_file() else []
            windows = [(int(row["device"]), float(row["start"]), float(row["end"])) for row in found]
            coordinator.presence.restore(windows)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, whose bytes and refusals are counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            bytes_down = bytes_up = 0

            async def receiving() -> MutableMapping[str, Any]:
                nonlocal bytes_up
                message = await receive()
                bytes_up += len(message.get("body", b""))
                return message

            async def sending(message: MutableMapping[str, Any]) -> None:
                nonlocal bytes_down
                bytes_down += len(message.get("body", b""))
                if message.get("status", 200) >= 400:
                    self.refusals[scope.get(CODE, str(message["status"]))] += 1
                await send(message)

            try:
                await app(scope, receiving, sending)
            finally:
                self.requests += 1
                if (device := scope.get(DEVICE)) is not None:
                    self.down[device] += bytes_down
                    self.up[device] += bytes_up

        return counted

    def look(self, door: Door, now: float, over: bool = False) -> None:
        """Write how things stand, if it is time to. The end of the run is always written."""
        clock = time.monotonic()
        size = len(door.seats) + len(self.coordinator.presence)  # of what is written: the more, the less often
        if clock - self._written < PAUSE * (1 + size / 1000) and not over:
            return
        self._written = clock
        with contextlib.suppress(OSError):  # a full disk must not stop what only tells
            self._put(FILE, json.dumps(self._standing(door, now, over)))
            lines = [("device", "start", "end"), *self.coordinator.presence.windows(now)]
            with (self.folder / f"{TRACE}.part").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
            (self.folder / f"{TRACE}.part").replace(self.folder / TRACE)
            if ways := self.coordinator.ways:
                links.add(self.folder, ways.values())
                ways.clear()

    def _put(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(text)
        part.replace(self.folder / name)

    def _standing(self, door: Door, now: float, over: bool) -> dict[str, Any]:
        coordinator, disk = self.coordinator, shutil.disk_usage(self.folder)
        return {
            "at": time.time(),
            "time": now,
            "state": "over" if over else "stopping" if coordinator.draining else "serving",
            "requests": self.requests,
            "refusals": dict(sorted(self.refusals.items())),
            "visits": len(door.visits),
            "disk_free": disk.free,
            "disk_full": coordinator.acts.ledger.full,
            "ledger_bytes": coordinator.acts.ledger.size,
            "recovered_acts": self.recovered,
            "devices": [self._device(seat, now) for seat in sorted(door.seats.values(), key=lambda one: one.seat)],
        }

    def _device(self, seat: Any, now: float) -> dict[str, Any]:
        device, coordinator = seat.seat, self.coordinator
        task = coordinator.acts.tasks.get(device)
        lease = None if task is None else coordinator.leases.find(task)
        rests = coordinator.leases.rests(device, now)
        seen = coordinator.presence.seen.get(device)
        there = seen is not None and now - seen <= coordinator.presence.silence
        state = "working" if task is not None else "resting" if rests else "waiting" if there else "away"
        return {
            "device": device,
            "name": seat.name,
            "state": "revoked" if seat.revoked is not None else state,
            "seen": None if seen is None else round(now - seen, 1),  # seconds ago
            "task": task,
            "lease": None if lease is None else round(lease.until - now, 1),  # seconds left
            "examples": seat.examples,
            "bytes_down": self.down.get(device, 0),
            "bytes_up": self.up.get(device, 0),
        }
