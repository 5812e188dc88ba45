"""What a simulation measures: bytes, staleness, and a line of metrics for every evaluation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedasmu.pools import Job, Pool
from fedasmu.protocol import Evaluate, Evaluated, Model, Report
from fedasmu.record import Record
from fedasmu.server import Counters


@dataclass(slots=True)
class Tally:
    """In all, and since the last evaluation."""

    bytes_down: int = 0
    bytes_up: int = 0
    total_staleness: int = 0
    uploads: int = 0
    staleness: int = 0
    train_loss: float = 0.0


class Meter:
    """Evaluations run in the pool like any other computation; their lines are written in order, when they are known."""

    def __init__(self, pool: Pool, record: Record) -> None:
        self.pool, self.record = pool, record
        self.tally = Tally()
        self.watchers: list[Callable[[dict[str, Any]], None]] = []  # told of every line of the metrics
        self.latest: dict[str, Any] = {}  # the last line of the metrics
        self._pending: deque[tuple[dict[str, Any], int]] = deque()
        self._evaluated = -1  # the version last sent to evaluation

    def upload(self, report: Report, staleness: int) -> None:
        self.tally.uploads += 1
        self.tally.staleness += staleness
        self.tally.total_staleness += staleness
        self.tally.train_loss += report.loss

    def evaluate(self, model: Model, counters: Counters, now: float) -> None:
        tally = self.tally
        self._evaluated = model.version
        row = {
            "time": now,
            "version": model.version,
            "uploads": counters.received,
            "train_loss": tally.train_loss / tally.uploads if tally.uploads else "",
            "staleness": tally.staleness / tally.uploads if tally.uploads else "",
            "stale": counters.stale,
            "refused": counters.refused,
            "lost": counters.lost,
            "bytes_down": tally.bytes_down,
            "bytes_up": tally.bytes_up,
        }
        self.tally = replace(tally, uploads=0, staleness=0, train_loss=0.0)
        self._pending.append((row, self.pool.submit(Job(Evaluate(model.vector), -1, -1, 0), now)))

    def evaluate_last(self, model: Model, counters: Counters, now: float) -> None:
        """The final model, unless it was evaluated already; then wait for every line."""
        if self._evaluated != model.version:
            self.evaluate(model, counters, now)
        self.drain(wait=True)

    def drain(self, wait: bool) -> None:
        """Write the lines that are known, or all of them."""
        while self._pending and (wait or self.pool.ready(self._pending[0][1])):
            row, ticket = self._pending[0]
            result = self.pool.result(ticket)
            assert isinstance(result, Evaluated)
            self._pending.popleft()
            self.latest = {**row, "accuracy": result.accuracy, "loss": result.loss}
            self.record.metrics(self.latest)
            for watch in self.watchers:
                watch(self.latest)

    def state(self) -> dict[str, Any]:
        self.drain(wait=True)
        return {
            "tally": asdict(self.tally),
            "latest": self.latest,
            "evaluated": self._evaluated,
            "record": self.record.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.tally = Tally(**state["tally"])
        self.latest, self._evaluated = state["latest"], state["evaluated"]
        self.record.restore(state["record"])
