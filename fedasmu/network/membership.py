"""A device's place in a run: its seat, its visit, what it works with, and the questions that it asks the server."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from fedasmu.encoding.displacement import Reference
from fedasmu.errors import UserError
from fedasmu.network import vocabulary, wire
from fedasmu.network.client import Client
from fedasmu.network.connection import Ended, Reply
from fedasmu.network.drawer import Drawer
from fedasmu.network.equipment import Equipment
from fedasmu.network.keys import Invite
from fedasmu.network.own import Own
from fedasmu.network.terms import Terms
from fedasmu.protocol import Model, Task

FIRST_CONTACT = 20.0  # seconds without an answer before a new device gives up
QUARRELS = 5  # visits in a row that another process with the same key ended
BUILDING = threading.Lock()  # torch traces a network by patching itself, for all threads
HEADROOM = 1 << 20  # bytes of a task besides its tensors

Read = TypeVar("Read", Task, Model)


class Abandoned(Exception):
    """The server has given this task up: there is no point in finishing it."""


class Membership:
    def __init__(
        self,
        client: Client,
        drawer: Drawer,
        own: Own,
        model: Callable[[], nn.Module] | None,
        engine: str,
        say: Callable[[str], None],
    ) -> None:
        self.client, self.drawer, self.own, self.say = client, drawer, own, say
        self._model, self._engine = model, engine
        self._equipment: Equipment | None = None
        self._terms: Terms | None = None
        self._quarrels = 0
        self._visiting = threading.RLock()  # a hello may need words, and asks for them
        self.beat, self.poll = 20.0, 25.0  # seconds

    @property
    def equipment(self) -> Equipment:
        assert self._equipment is not None, "it is there from the first hello on"
        return self._equipment

    def begin(self, invite: Invite | None, name: str | None, new_key: bool) -> None:
        """Enrol if that is due, or change the key, and open a visit."""
        self.client.patience = FIRST_CONTACT if self._terms is None else math.inf
        if invite is not None and not self.drawer.pins():
            name = name or f"device-{self.drawer.key.public.hex()[:12]}"
            self.client.enrol(invite, name, len(self.own))
            self.drawer.keep_pins(self.client.pins)
        elif new_key or self.drawer.has_next_key:
            self.client.rekey(self.drawer.next_key())
            self.drawer.take_next_key()
        self.hello()
        self.client.patience = math.inf

    def renew(self) -> None:
        """Look at the data again. The server is told when they are others, and how many there are."""
        if self.own.renew():
            self._equipment = None
            self.hello()

    def hello(self) -> None:
        """Open a visit, and get ready for what the server says is to be trained. One thread at a time."""
        with self._visiting:
            self._hello()

    def _hello(self) -> None:
        welcome = self.client.hello(len(self.own))
        terms = Terms.read(welcome.get("recipe"), self.client.url)
        self.drawer.enter(self.client.run)
        if self._equipment is None or terms != self._terms:
            data = self.own.tensors(terms.text, self._words(terms))
            with BUILDING:
                here = data, self.client.device, self.client.url
                self._equipment = Equipment(terms, *here, self._model, self._engine, self.own.name)
            self._terms = terms
            self.say(f"device {self.client.device}: {terms.model}, {terms.algorithm['name']}; {self._equipment.engine}")
        self.client.largest = 8 * self._equipment.layout.bytes + HEADROOM
        self.beat, self.poll = _bounded(welcome.get("beat"), 20.0), _bounded(welcome.get("poll"), 25.0)
        self.drawer.keep_pins(self.client.pins)

    def revisit(self, visit: str) -> None:
        """Open a new visit in the place of this one, unless another thread has done so."""
        with self._visiting:
            if self.client.visit == visit:
                self.hello()

    def ask(self, attempt: Callable[[], Reply]) -> Reply:
        """A signed request. A server that was started again does not know us: then a new visit, and once more."""
        while True:
            visit = self.client.visit
            reply = attempt()
            code = reply.table.get("error") if reply.status >= 400 else None
            if code in ("over", "revoked"):
                raise Ended(code, str(reply.table.get("say")))
            if reply.status != 401:
                self._quarrels = 0
                return reply
            self._quarrels += 1
            if self._quarrels > QUARRELS:
                raise UserError("another process uses this device's key: stop one of them, and give each its own state")
            self.revisit(visit)

    def of_task(self, attempt: Callable[[], Reply]) -> Reply:
        """The same, about a task that may be given up."""
        reply = self.ask(attempt)
        if reply.status >= 400:
            raise Abandoned
        return reply

    def request(self, method: str, target: str, body: bytes = b"") -> Callable[[], Reply]:
        return lambda: self.client.request(method, target, body)

    def read(
        self, read: Callable[[bytes, int, Reference | None], Read], reply: Reply, known: Reference | None = None
    ) -> Read:
        """A frame of the server's, which is believed no more than it believes us."""
        try:
            return read(reply.body, self.equipment.layout.size, known)
        except wire.Malformed as error:
            raise UserError(f"{self.client.url}: what the server sends is no model for this device: {error}") from None

    def _words(self, terms: Terms) -> list[str]:
        """The run's vocabulary, if it has one."""
        if terms.text is None:
            return []
        digest = terms.text.vocabulary
        self.client.largest = vocabulary.LARGEST
        try:
            return self.drawer.words(digest, lambda: self.ask(self.request("GET", f"/v1/vocabulary/{digest}")).body)
        except ValueError as error:
            raise UserError(f"{self.client.url}: the run's words cannot be had: {error}") from None


def _bounded(value: Any, default: float) -> float:
    """A number of seconds that a server may ask for."""
    known = isinstance(value, int | float) and -math.inf < value < math.inf
    return min(max(float(value), 0.01), 60.0) if known else default
