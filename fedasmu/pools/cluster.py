"""Workers on the machines of a Ray cluster.

The trainer, with its data, is put into Ray's object store once: a node fetches it once, and its workers read it where
it lies. So it is with a version of the global model. What was trained stays in the store of its node, for the next
command that needs it there, and comes here. A worker or a whole node that dies costs what it was doing.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

from torch import Tensor

from fedasmu.errors import UserError
from fedasmu.pools import connection
from fedasmu.pools.actor import Actor, Parcel, about, tensor_of
from fedasmu.pools.contract import Job, Site
from fedasmu.pools.crew import Answered, Crew, Lost
from fedasmu.pools.lane import lies_apart, pack, unpack


def cluster(site: Site, address: str) -> Crew:
    """A pool on the Ray cluster at this address: see `connection.connect`."""
    ray, ours = connection.connect(address)
    return Crew(site, Actors(site, ray, ours))


class Given(NamedTuple):
    ticket: int
    job: Job
    reply: Any  # two objects of the store that are not there yet
    vector: Any


class Member:
    """An actor: its first word, and what it was given."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.hello = handle, handle.hello.remote()
        self.given: deque[Given] = deque()


class Actors:
    """One actor for each processor of the cluster. They join when they have started, one by one."""

    def __init__(self, site: Site, ray: Any, ours: bool) -> None:
        self._site, self._ray, self._ours = site, ray, ours
        connection.send_own_modules(ray)
        arrays: list[Any] = []
        message = pack(site.perform, Parcel(arrays), ray.cloudpickle.CloudPickler)
        self._parcel = ray.put((message, arrays))
        self._team: list[Member] = []
        self._starting: list[Member] = []
        self._lost: list[Lost] = []
        self._stored: dict[int, tuple[int, Any]] = {}  # id of a tensor -> its version, and the object that holds it
        self._nodes: set[str] = set()
        for _ in range(connection.processors(ray, site.gpus)):
            self._hire()

    @property
    def joined(self) -> int:
        """How many have started and may be given something."""
        return len(self._team)

    def vacant(self, waiting: int) -> bool:
        ahead = waiting > len(self._team)
        return any(len(member.given) <= ahead for member in self._team)

    def give(self, ticket: int, job: Job) -> bool:
        member = min(self._team, key=lambda member: len(member.given))
        vectors: list[Any] = []

        def place(tensor: Tensor) -> int | None:
            if not lies_apart(tensor):
                return None
            vectors.append(self._object(tensor))
            return len(vectors) - 1

        try:
            message = pack((job.command, job.device, job.seed), place, self._ray.cloudpickle.CloudPickler)
        except Exception as error:  # whatever a user's own objects raise when they are pickled
            advice = "compute in this process (workers: inline)"
            raise job.failure(f"it cannot be sent to a worker: {error}; {advice}") from None
        reply, vector = member.handle.perform.options(num_returns=2).remote(message, *vectors)
        member.given.append(Given(ticket, job, reply, vector))
        return True

    def heard(self, timeout: float) -> list[Answered | Lost]:
        awaited = {member.given[0].reply: member for member in self._team if member.given}
        hellos = {member.hello: member for member in self._starting}
        news: list[Answered | Lost] = []
        for ref in self._ready([*awaited, *hellos], 0.0 if self._lost else timeout):
            if ref in hellos:
                self._welcome(hellos[ref])
            elif (answered := self._answer(awaited[ref])) is not None:
                news.append(answered)
        news += self._lost
        self._lost = []
        return news

    def close(self) -> None:
        for member in (*self._team, *self._starting):
            self._ray.kill(member.handle)
        self._stored.clear()
        if self._ours:
            self._ray.shutdown()

    def _ready(self, objects: list[Any], timeout: float) -> list[Any]:
        """Those that are there, as soon as one is."""
        if not objects or not self._ray.wait(objects, num_returns=1, timeout=timeout)[0]:
            return []
        ready: list[Any] = self._ray.wait(objects, num_returns=len(objects), timeout=0.0)[0]
        return ready

    def _hire(self) -> None:
        options = {"num_cpus": 1, "num_gpus": self._site.gpus, "scheduling_strategy": "SPREAD"}
        handle = self._ray.remote(Actor).options(**options).remote(self._parcel)
        self._starting.append(Member(handle))

    def _welcome(self, member: Member) -> None:
        """It has started, and may join if it computes what this process would."""
        self._starting.remove(member)
        try:
            node, there = self._ray.get(member.hello)
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", True):
                raise UserError(f"a node of the cluster cannot start a worker: {connection.reason(error)}") from None
            self._hire()  # its node died
            return
        if node not in self._nodes:
            self._nodes.add(node)
            connection.compare(node, there, about(), self._site.say)
        self._team.append(member)

    def _answer(self, member: Member) -> Answered | None:
        ticket, job, reply, vector = member.given[0]
        try:
            packed, seconds = self._ray.get(reply)
            answer = job.failure(packed) if isinstance(packed, str) else unpack(packed, lambda _: self._fetched(vector))
        except self._ray.exceptions.RayError:
            self._bury(member)
            return None
        member.given.popleft()
        return Answered(ticket, job, answer, seconds)

    def _fetched(self, stored: Any) -> Tensor:
        """A copy, because nobody may write to what lies in the store; that serves the next command that needs it."""
        tensor = tensor_of(self._ray.get(stored)).clone()
        self._remember(tensor, stored)
        return tensor

    def _object(self, tensor: Tensor) -> Any:
        version, stored = self._stored.get(id(tensor), (-1, None))
        return stored if version == tensor._version else self._remember(tensor, self._ray.put(tensor.detach().numpy()))

    def _remember(self, tensor: Tensor, stored: Any) -> Any:
        if id(tensor) not in self._stored:
            weakref.finalize(tensor, self._stored.pop, id(tensor), None).atexit = False
        self._stored[id(tensor)] = tensor._version, stored
        return stored

    def _bury(self, member: Member) -> None:
        """What a node had in its store is gone with it: every vector is put there anew when it is next needed."""
        self._team.remove(member)
        self._ray.kill(member.handle)
        self._stored = {}
        death = "worker on the cluster died, or its node did"
        self._lost += [Lost(one.ticket, one.job, death, not place) for place, one in enumerate(member.given)]
        self._hire()
