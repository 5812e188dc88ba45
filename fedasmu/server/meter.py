"""What a run measures: bytes, staleness, and a line of metrics for every evaluation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedasmu.events import Measured
from fedasmu.pools import Job, Pool
from fedasmu.protocol import Evaluate, Evaluated, Model
from fedasmu.server.core import Counters
from fedasmu.server.survey import Survey


@dataclass(slots=True)
class Tally:
    """In all, and since the last evaluation."""

    bytes_down: int = 0
    bytes_up: int = 0
    bytes_fresh: int = 0  # of those down, for fresh models
    total_staleness: int = 0
    uploads: int = 0
    staleness: int = 0
    train_loss: float = 0.0
    losses: int = 0  # that are in it


@dataclass(frozen=True, slots=True)
class Quick:
    """Evaluations on a part of the test data, between those on all of them."""

    subset: int = 0  # test examples; 0: every evaluation is on all
    full_every: int = 10  # evaluations: each of so many is on all

    def of(self, number: int) -> int:
        """How many test examples this evaluation is on; 0: all. The first one of a run has the number 0."""
        return self.subset if number % self.full_every else 0


class Meter:
    """Evaluations run in the pool like any other computation; their lines come in order, when they are known.

    Without a pool it is the devices that measure: a line is what they told since the last one.
    """

    def __init__(
        self,
        pool: Pool | None,
        tell: Callable[[Measured], None],
        metric: str = "accuracy",
        quick: Quick = Quick(),  # noqa: B008 - frozen
    ) -> None:
        self.pool, self._tell, self.metric, self._quick = pool, tell, metric, quick
        self.tally = Tally()
        self.survey = Survey()
        self.latest: Measured | None = None  # the last line of the metrics
        self._pending: deque[tuple[dict[str, Any], int]] = deque()
        self._evaluated = -1  # the version last sent to evaluation on all of the data
        self._number = 0  # of the next evaluation
        self._when: float | None = None  # and at what time

    @property
    def pending(self) -> int:
        """Evaluations under way."""
        return len(self._pending)

    def upload(self, loss: float, staleness: int) -> None:
        self.tally.uploads += 1
        self.tally.staleness += staleness
        self.tally.total_staleness += staleness
        if math.isfinite(loss):  # or one device would decide a mean
            self.tally.train_loss += loss
            self.tally.losses += 1

    def evaluate(self, model: Model, counters: Counters, now: float, full: bool = False) -> None:
        """On all of the test data if `full`, else as it is this evaluation's turn."""
        tally = self.tally
        if self.pool is None and not self.survey.heard.examples:
            return  # nobody has measured anything
        subset = 0 if full or self.pool is None else self._quick.of(self._number)
        self._number += 1
        self._evaluated = self._evaluated if subset else model.version
        counted: dict[str, Any] = {
            "time": now,
            "version": model.version,
            "uploads": counters.received,
            "train_loss": tally.train_loss / tally.losses if tally.losses else None,
            "staleness": tally.staleness / tally.uploads if tally.uploads else None,
            "stale": counters.stale,
            "refused": counters.refused,
            "lost": counters.lost,
            "bytes_down": tally.bytes_down,
            "bytes_up": tally.bytes_up,
            **self.survey.by_device(),
            "subset": subset,
        }
        self.tally = replace(tally, uploads=0, staleness=0, train_loss=0.0, losses=0)
        reports = self.survey.heard.reports
        told = self.survey.take()
        if self.pool is None:
            assert told is not None
            self._write(Measured(**counted, score=told.score, loss=told.loss, reports=reports))
            return
        # Not before the trainings that are needed until the next one, if that is as far away as the last.
        needed = now if self._when is None else 2 * now - self._when
        self._when = now
        self._pending.append((counted, self.pool.submit(Job(Evaluate(model.vector, subset), -1, -1, 0), needed)))

    def evaluate_last(self, model: Model, counters: Counters, now: float) -> None:
        """The final model, unless it was evaluated already; then wait for every line."""
        if self._evaluated != model.version:
            self.evaluate(model, counters, now, full=True)
        self.drain(wait=True)

    def drain(self, wait: bool) -> None:
        """Tell the lines that are known, or all of them."""
        while self._pending:
            assert self.pool is not None
            counted, ticket = self._pending[0]
            if not (wait or self.pool.ready(ticket)):
                return
            result = self.pool.result(ticket)
            assert isinstance(result, Evaluated)
            self._pending.popleft()
            self._write(Measured(**counted, score=result.score, loss=result.loss, metric=self.metric))

    def _write(self, line: Measured) -> None:
        self.latest = line
        self._tell(line)

    def state(self) -> dict[str, Any]:
        self.drain(wait=True)
        latest = None if self.latest is None else asdict(self.latest)
        return {
            "tally": asdict(self.tally),
            "latest": latest,
            "evaluated": self._evaluated,
            "number": self._number,
            "survey": self.survey.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        tally = {"losses": state["tally"]["uploads"], **state["tally"]}  # older ones had counted all uploads
        self.tally, self._evaluated, self._number = Tally(**tally), state["evaluated"], state["number"]
        self.survey.restore(state["survey"])
        self.latest = None if state["latest"] is None else Measured(**state["latest"])
