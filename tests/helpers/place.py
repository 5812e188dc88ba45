"""A coordinator on a folder, without a socket: for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedasmu.network import wire
from fedasmu.network.acts import Acts
from fedasmu.network.coordinator import Coordinator, Plan
from fedasmu.network.keeping import Keeping
from fedasmu.network.ledger import Ledger
from fedasmu.network.site import attach
from fedasmu.pools import Inline
from fedasmu.protocol import Report
from fedasmu.run.build import build
from fedasmu.settings.recipe import parse
from fedasmu.storage.record import Record
from helpers.blobs import blobs, settings
from helpers.federation import QUICK, network

LEASE, OFFER = 60.0, 30.0


class Place:
    """A coordinator on a folder. Opened again, it recovers."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.changes = changes
        self.path, changes = path, {"pacing": {"period": 1.0, "max_in_flight": 3, "count": 3}, **changes}
        table = settings(**changes)
        table["network"] = {**QUICK, "lease": LEASE, "offer": OFFER, "gather": 0.0, **changes.get("network", {})}
        world = build(parse(table), network, blobs())
        assert world.trainer is not None
        self.record = Record(path)
        self.ledger = Ledger(path / "ledger", {"run": "r"})
        desk, roster = attach(world, Inline(world.trainer.perform), self.record)
        acts = Acts(desk, self.ledger, roster, world.config.algorithm.attachments(world.layout))
        config = world.config
        plan = Plan(config.seed, config.pacing.period, config.stop.uploads, config.stop.time, config.network)
        self.coordinator = Coordinator(acts, plan)
        self.keeping = Keeping(path, acts, pause=1e9, prune=False)
        begun, self.recovered = self.keeping.recover(print)
        if not begun:
            self.coordinator.begin(0.0)
        self.coordinator.go_on()

    def save(self) -> None:
        self.keeping.save()

    def crash(self) -> None:
        """Nothing is closed in order; files keep what was written."""
        self.ledger.sync()
        self.record.close()
        self.keeping.close()

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        server = self.coordinator.server
        entries = [(entry.task.id, entry.task.device, entry.asked) for entry in server.ledger.values()]
        return wire.digest(server.model.vector), server.model.version, server.counters, entries

    def report(self, task: int, device: int, shift: float = 0.01) -> bytes:
        base = self.coordinator.server.ledger[task].task.model.vector
        noise = torch.randn(len(base), generator=torch.Generator().manual_seed(task))
        return wire.report_frame(Report(base + shift * noise, 1, 0.5, {"path": 0.5}), {})


def started(place: Place, now: float = 0.0, devices: range = range(10)) -> dict[int, int]:
    """device -> task, after these devices were present at a tick."""
    for device in devices:
        place.coordinator.arrive(device, now)
    return {task.device: task.id for task in place.coordinator.advance(now)}
