"""The routes for those who have no visit yet: greetings, enrolment, a new key, and the hello that opens a visit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedasmu.data.federated import held_count
from fedasmu.network.coordinator import Coordinator
from fedasmu.network.door import Door, Problem, table
from fedasmu.network.keys import encoded
from fedasmu.network.replies import address_of, told
from fedasmu.network.terms import Terms


class Reception:
    def __init__(
        self,
        coordinator: Coordinator,
        door: Door,
        terms: Terms,
        pins: Callable[[], list[bytes]],
        clock: Callable[[], float],
    ) -> None:
        self.coordinator, self.door, self.terms, self.pins = coordinator, door, terms, pins
        self.clock = clock  # seconds of this run
        self.over = False  # the run
        self.routes = [
            Route("/healthz", self._healthz),
            Route("/v1/hello", self._greet),
            Route("/v1/hello", self._hello, methods=["POST"]),
            Route("/v1/enrol", self._enrol, methods=["POST"]),
            Route("/v1/key", self._rekey, methods=["POST"]),
        ]

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"run": self.door.run, "over": self.over})

    async def _greet(self, request: Request) -> Response:
        return JSONResponse(self.door.greeting(address_of(request)))

    async def _enrol(self, request: Request) -> Response:
        self.door.limit_enrolment(address_of(request))
        if self.over:
            raise Problem(410, "over", "the run is over: it ended before this device had joined")
        seat = self.door.enrol(await table(request))
        return JSONResponse({"device": seat.seat, "name": seat.name}, 201)

    async def _rekey(self, request: Request) -> Response:
        self.door.limit_enrolment(address_of(request))
        seat = self.door.rekey(await table(request))
        return JSONResponse({"device": seat.seat, "name": seat.name})

    async def _hello(self, request: Request) -> Response:
        seat, visit, examples = self.door.hello(await table(request))
        self.door.recount(seat, examples)
        device, now, roster = seat.seat, self.clock(), self.coordinator.acts.roster
        held = held_count(examples, self.terms.on_devices)
        member = replace(roster[device], examples=examples - held, held=held)
        if roster[device] != member and not self.coordinator.acts.flushed:
            if (open_task := self.coordinator.acts.tasks.get(device)) is not None:
                self.coordinator.lose(open_task, now)  # it was made for other examples
            self.coordinator.seat(device, member, now)
        settings = self.coordinator.plan.settings
        welcome = {
            "device": device,
            "name": seat.name,
            "visit": visit,
            "recipe": self.terms.model_dump(mode="json"),
            "poll": settings.poll,
            "beat": settings.beat,
            "pins": [encoded(pin) for pin in self.pins()],
        }
        return await told(self.coordinator.acts.ledger, JSONResponse(welcome))
