"""The run as a list of acts: appended to the ledger first, then applied to the desk.

Applying the same acts to a fresh desk gives the same model, the same files and the same answers, so the ledger is all
that a crash must leave.
"""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from typing import Any

from fedasmu.encoding.displacement import Reference
from fedasmu.errors import Refused, is_refusal
from fedasmu.network import wire
from fedasmu.network.ledger import Ledger, is_full
from fedasmu.network.segment import Act
from fedasmu.protocol import Report, Task
from fedasmu.roster import Member, Roster, Seconds
from fedasmu.server.desk import Desk


class Rebuild(Exception):
    """An act was not applied to its end: the run must be built anew from what is on disk.

    Where it is the method that raised on it, the act is skipped from now on. Where it was the machine, the act is good.
    """


class Changed(Exception):
    """The method raised on an act that it had taken before, and devices were told so: it is another one now."""


def is_of_the_machine(error: BaseException) -> bool:
    """Whether it was a disk, the memory or the like that failed, and not the method."""
    return is_full(error) or is_refusal(error) or isinstance(error, Refused)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a delivered task. A device that asks again is told the same."""

    task: int
    verdict: str
    staleness: int
    version: int


class Acts:
    def __init__(self, desk: Desk, ledger: Ledger, roster: Roster, attachments: wire.Shapes) -> None:
        self.desk, self.ledger, self.roster, self.attachments = desk, ledger, roster, attachments
        self.now = 0.0  # seconds of this run
        self.outcomes: dict[int, Outcome] = {}  # of each device's last task
        self.asks: dict[int, int] = {}  # requests for a fresh model so far, by task in flight
        self.tasks: dict[int, int] = {}  # device -> its task in flight
        self.flushed = False
        self.broken: Rebuild | None = None  # since then there is half an act in memory: not to be kept, nor told

    def do(self, kind: str, now: float, body: bytes = b"", **head: Any) -> None:
        """Append, then apply. A full disk shows in the appending, when nothing has changed yet."""
        if self.broken is not None:
            raise self.broken
        act = Act(kind, {"time": max(self.now, now), **head}, body)
        self.apply(self.ledger.append(act), act)

    def recover(self, first: int) -> int:
        """Apply what the ledger has from this act on. How many acts that were."""
        skipped, number = self.ledger.skipped(first), first - 1
        for number, act in self.ledger.replay(first):
            if number not in skipped:
                self.apply(number, act)
        return number - first + 1

    def report(self, task: int, body: bytes | bytearray) -> Report:
        """What a device sent for its task, read with the server's own knowledge of the device."""
        member = self.roster[self.desk.server.ledger[task].task.device]
        size = len(self.desk.server.model.vector)
        return wire.read_report(body, size, self.attachments, member.examples, member.held, self._known(task))

    def apply(self, number: int, act: Act) -> None:
        """Make the call that this act stands for."""
        try:
            getattr(self, f"_{act.kind}")(act.head, act.body)
        except Exception as error:
            if act.kind == "flush" and not is_of_the_machine(error):
                raise  # at a run's end there is no upload to leave out: it goes on when the method is mended
            self.broken = Rebuild(traceback.format_exc())
            if not is_of_the_machine(error):
                if number + 1 < self.ledger.next:  # nothing follows an act that has failed but its skip
                    raise Changed(traceback.format_exc()) from error
                self.ledger.append(Act("skip", {"time": self.now, "act": number, "task": act.head.get("task")}))
                self.ledger.sync()
            raise self.broken from error

    def _begin(self, head: dict[str, Any], body: bytes) -> None:
        self._enrol(head["roster"])
        self.desk.begin(self._at(head))

    def _seat(self, head: dict[str, Any], body: bytes) -> None:
        self._at(head)
        self.roster.enrol(head["device"], _member(head["member"]))

    def _start(self, head: dict[str, Any], body: bytes) -> None:
        for device in head.get("forget", []):
            self.desk.server.transfer.forget(device)
        self._opened(self.desk.start(self._at(head), head["devices"]))

    def _fetch(self, head: dict[str, Any], body: bytes) -> None:
        task = head["task"]
        self.desk.fetch(self._at(head), task, self.desk.server.ledger[task].task.device)
        self.asks[task] = self.asks.get(task, 0) + 1

    def _sending(self, head: dict[str, Any], body: bytes) -> None:
        """Only a script knows of this moment: a simulation counts the bytes of an upload that is under way."""
        self._at(head)
        self.desk.sending(head["task"], self.report(head["task"], body), self._part(body))

    def _upload(self, head: dict[str, Any], body: bytes) -> None:
        task = head["task"]
        device, report = self.desk.server.ledger[task].task.device, self.report(task, body)
        decision = self.desk.receive(self._at(head), task, device, report, self._part(body))
        self._closed(task, device)
        version = self.desk.server.model.version
        self.outcomes[device] = Outcome(task, decision.verdict.value, decision.staleness, version)

    def _lose(self, head: dict[str, Any], body: bytes) -> None:
        task = head["task"]
        self._closed(task, self.desk.server.ledger[task].task.device)
        self.desk.lose(self._at(head), task)

    def _skip(self, head: dict[str, Any], body: bytes) -> None:
        """What made the method raise is not applied; the task that it was for is lost."""
        if head["task"] in self.desk.server.ledger:
            self._lose(head, body)

    def _flush(self, head: dict[str, Any], body: bytes) -> None:
        self.desk.flush(self._at(head))
        self.flushed = True

    def _known(self, task: int) -> list[Reference | None]:
        """What a report's model may be told from: what its device was sent for this task."""
        server, entry = self.desk.server, self.desk.server.ledger[task]
        return [server.transfer.reference(model) for model in (entry.last, entry.task.model)]

    def _part(self, body: bytes) -> float:
        """Of a whole model's bytes, what the model in a report took."""
        return self.desk.server.transfer.part if wire.is_displaced(body) else 1.0

    def _at(self, head: dict[str, Any]) -> float:
        self.now = float(head["time"])
        return self.now

    def _opened(self, tasks: list[Task]) -> None:
        self.tasks |= {task.device: task.id for task in tasks}

    def _closed(self, task: int, device: int) -> None:
        self.tasks.pop(device, None)
        self.asks.pop(task, None)

    def _enrol(self, members: list[list[Any]]) -> None:
        for device, member in enumerate(members):
            self.roster.enrol(device, _member(member))

    def members(self) -> list[list[Any]]:
        """The roster as plain values."""
        everybody = (self.roster[device] for device in range(len(self.roster)))
        return [plain(member) for member in everybody]

    def state(self) -> dict[str, Any]:
        """A checkpoint, except for the number of the act that follows it."""
        return {
            "desk": self.desk.state(),
            "now": self.now,
            "outcomes": [[device, asdict(outcome)] for device, outcome in self.outcomes.items()],
            "asks": [[task, count] for task, count in self.asks.items()],
            "roster": self.members(),
            "flushed": self.flushed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._enrol(state["roster"])
        self.desk.restore(state["desk"])
        self.now, self.flushed = state["now"], state["flushed"]
        self.outcomes = {device: Outcome(**outcome) for device, outcome in state["outcomes"]}
        self.asks = dict(state["asks"])
        self._opened([entry.task for entry in self.desk.server.ledger.values()])


def plain(member: Member) -> list[Any]:
    return [member.examples, *member.seconds, member.held]


def _member(values: list[Any]) -> Member:
    examples, *seconds, held = values
    return Member(examples, Seconds(*seconds), held)
