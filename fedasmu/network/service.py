"""The routes: what a device asks over HTTPS, and what it is told once everything said so far is on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedasmu.network import vocabulary, wire
from fedasmu.network.acts import Outcome, Rebuild
from fedasmu.network.bounds import LARGE
from fedasmu.network.coordinator import Gone
from fedasmu.network.door import Problem, Signed, body
from fedasmu.network.folder import keep_failure
from fedasmu.network.ledger import DiskFull
from fedasmu.network.polls import Polls
from fedasmu.network.reception import Reception
from fedasmu.network.replies import (
    Framed,
    broken,
    full,
    full_or_broken,
    gone,
    label_of,
    later,
    left,
    nowhere,
    number_of,
    offset_of,
    range_of,
    refused,
    seconds_of,
    task_of,
    told,
    training_of,
)
from fedasmu.network.script import Free, Script
from fedasmu.network.transfers import TRANSFERS, Parts, Transfers

TRACE = 8192  # bytes of a device's traceback
RATE = 16_384  # bytes a second that an upload must have at least

Handler = Callable[["Service", Request, Signed], Awaitable[Response]]


class Service:
    def __init__(self, reception: Reception, folder: Path, words: Sequence[str] = ()) -> None:
        self.reception, self.folder = reception, folder
        self.coordinator, self.door = reception.coordinator, reception.door
        self._words = vocabulary.written(words)
        self.told_over: set[int] = set()  # devices that know it
        self.woken = asyncio.Event()
        self.order: Free | Script = Free()
        self.polls = Polls(self.woken.set)
        server, attachments = self.coordinator.server, self.coordinator.acts.attachments
        self.lengths = wire.report_lengths(len(server.model.vector), attachments, server.transfer.part)
        self._transfers = Transfers()
        self._parts = Parts(TRANSFERS if self.lengths.stop > LARGE else 0)
        routes = [
            *reception.routes,
            Route("/v1/task", self._guarded(Service.task)),
            Route("/v1/vocabulary/{digest}", self._guarded(Service.vocabulary)),
            Route("/v1/models/{version}", self._guarded(Service.model)),
            Route("/v1/tasks/{task}/fresh", self._guarded(Service.fresh), methods=["POST"]),
            Route("/v1/tasks/{task}/beat", self._guarded(Service.beat), methods=["POST"]),
            Route("/v1/tasks/{task}/result", self._guarded(Service.result), methods=["PUT"]),
            Route("/v1/tasks/{task}/result", self._guarded(Service.held)),
            Route("/v1/tasks/{task}/fail", self._guarded(Service.fail), methods=["POST"]),
        ]
        handlers: Any = {Problem: refused, Gone: gone, DiskFull: full, OSError: full_or_broken, ClientDisconnect: left}
        handlers |= {HTTPException: nowhere, Exception: broken}
        self.app = Starlette(routes=routes, exception_handlers={**handlers, Rebuild: self._rebuild})

    def clock(self) -> float:
        return self.reception.clock()

    async def task(self, request: Request, signed: Signed) -> Response:
        """A long poll: the device's task, as soon as there is one."""
        device, coordinator = signed.device, self.coordinator
        holds = label_of(request, "holds")
        last = True
        if coordinator.arrive(device, self.clock(), holds) is None and not self.polls.full:
            last = await self.polls.wait(request, device, seconds_of(request, coordinator.plan.settings.poll))
        if last:
            coordinator.leave(device)
        self._check_over(device)
        number = coordinator.acts.tasks.get(device)
        if number is not None:
            frame = wire.task_frame(coordinator.server.ledger[number].task, coordinator.known(device, holds))
            return await self._told(Framed(frame))
        rest = max(coordinator.leases.rests(device, self.clock()), 5.0 * coordinator.draining)
        return later(self.polls.pause(len(self.door.seats), rest))

    async def vocabulary(self, request: Request, signed: Signed) -> Response:
        """The words of a text model, for devices that have texts."""
        digest, data = self._words
        if request.path_params["digest"] != digest:
            raise Problem(404, "vocabulary", "this run has other words")
        return Response(data, media_type="application/json")

    async def fresh(self, request: Request, signed: Signed) -> Response:
        ask = request.query_params.get("ask", "0")
        if not ask.isdecimal() or len(ask) > 9:
            raise Problem(400, "ask", "ask must be a number")
        task = task_of(request)
        asks = self.coordinator.acts.asks
        turn = await self.order.turn("fetch", task, lambda: int(ask) < asks.get(task, 0))
        model = self.coordinator.fresh(signed.device, task, int(ask), self.clock())
        base = self.coordinator.server.ledger[task].task.model  # before the next act, which may be its loss
        self.order.done(turn)
        if model is None:
            return await self._told(Response(status_code=204))
        frame = wire.model_frame(model, self.coordinator.server.transfer.reference(base))
        return await self._told(Framed(frame))

    async def model(self, request: Request, signed: Signed) -> Response:
        """A model that the device was sent for its task, from the byte on where the sending broke off."""
        version, first = number_of(request, "version"), range_of(request)
        model = self.coordinator.again(signed.device, version, first, self.clock())
        reference = self.coordinator.known(signed.device, label_of(request, "from"))
        data, mark = wire.body(model.vector, reference), f'"{wire.digest(model.vector)}"'
        if request.headers.get("if-range", mark) != mark:
            first = 0
        if first and first >= (length := sum(map(len, data))):
            raise Problem(416, "range", f"the model has {length} bytes")
        return await self._told(Framed(data, first, {"ETag": mark, "Accept-Ranges": "bytes"}))

    async def beat(self, request: Request, signed: Signed) -> Response:
        turn = "poll" in request.query_params and await self.order.turn("poll", task_of(request), lambda: False)
        wanted = self.coordinator.beat(signed.device, task_of(request), self.clock())
        self.order.done(turn)
        return await self._told(JSONResponse({"wanted": wanted}))

    async def result(self, request: Request, signed: Signed) -> Response:
        device, task = signed.device, task_of(request)
        outcome = self.coordinator.outcome(device, task)
        if outcome is None:
            self._check_over(device)
            outcome = await self._taken(request, signed, task)
        self.woken.set()
        return await self._told(JSONResponse(asdict(outcome)))

    async def held(self, request: Request, signed: Signed) -> Response:
        """What became of an upload; of one that is not here yet, how many of its bytes are."""
        device, task = signed.device, task_of(request)
        if (outcome := self.coordinator.outcome(device, task)) is not None:
            return await self._told(JSONResponse(asdict(outcome)))
        self._check_over(device)
        self.coordinator.leases.renew(task, self.clock())
        return JSONResponse({"held": len(self._parts.held(device, task, signed.digest))})

    async def fail(self, request: Request, signed: Signed) -> Response:
        """The device could not do it. What it says of why is kept for the person who runs the server."""
        text = await body(request, range(TRACE + 1), signed.digest)
        task = task_of(request)
        if self.coordinator.server.entry(task, signed.device) is None:
            raise Gone
        keep_failure(self.folder / "failures", f"device-{signed.device}-task-{task}", bytes(text))
        self.coordinator.lose(task, self.clock())
        self.woken.set()
        return await self._told(JSONResponse({"task": task}))

    async def _taken(self, request: Request, signed: Signed, task: int) -> Outcome:
        """An upload is read and delivered. What its parts took is noted, if the clock is a real one."""
        began, training = self.clock(), training_of(request)
        data = bytes(await self._upload(request, signed, task))
        parts = None if training is None or not self.order.real else (self.clock() - began, training)
        try:
            return await self._delivered(signed, task, data, parts)
        except wire.Malformed as error:
            raise Problem(422, "report", f"the report is not one: {error}") from None

    async def _delivered(self, signed: Signed, task: int, data: bytes, parts: tuple[float, float] | None) -> Outcome:
        """Others may have acted while the body came, or while its turn was waited for."""
        device, coordinator = signed.device, self.coordinator
        if coordinator.outcome(device, task) is None:
            report = coordinator.acts.report(task, data)
            if parts is not None:
                coordinator.note(device, task, *parts, len(wire.head(data)[1]))
            await self.order.sent(task, data)
            settled = lambda: coordinator.acts.tasks.get(device) != task  # noqa: E731
            turn = await self.order.turn("upload", task, settled)
            outcome = coordinator.deliver(device, task, data, signed.proof, self.clock())
            self.order.done(turn, wire.digest(report.vector))
            return outcome
        return coordinator.deliver(device, task, data, signed.proof, self.clock())

    def advance(self) -> None:
        """What the time brings: overdue tasks are lost, devices are started, and their polls answered."""
        for device in self.door.reload():
            if (held := self.coordinator.acts.tasks.get(device)) is not None:
                self.coordinator.lose(held, self.clock())
            self.polls.answer(device)
        for task in self.coordinator.advance(self.clock()):
            self.polls.answer(task.device)
        self._parts.expire(self.coordinator.acts.tasks)

    def finish(self) -> None:
        """The run is over: whoever waits is told."""
        self.reception.over = True
        self.polls.release()

    async def _upload(self, request: Request, signed: Signed, task: int) -> bytearray:
        seconds = 30.0 + self.lengths.stop / RATE
        self.coordinator.leases.renew(task, self.clock(), seconds)
        async with self._transfers.one(signed.device):
            with self._parts.one(signed.device, task, signed.digest, offset_of(request)) as part:
                return await body(request, self.lengths, signed.digest, part)

    async def _told(self, response: Response) -> Response:
        return await told(self.coordinator.acts.ledger, response)

    def _check_over(self, device: int, heard: bool = True) -> None:
        """A beat's answer may come when nobody listens to it any more: it does not count as heard."""
        if self.reception.over:
            self.told_over |= {device} if heard else set()
            raise Problem(410, "over", "the run is over")

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Every route but the greetings is for those who have signed."""

        @wraps(handler)
        async def guarded(request: Request) -> Response:
            if self.coordinator.acts.broken is not None:
                raise self.coordinator.acts.broken
            signed = self.door.sign_in(request)
            if handler not in (Service.result, Service.held):  # an upload that was taken is still told its outcome
                self._check_over(signed.device, heard=handler is not Service.beat or "poll" in request.query_params)
            return await handler(self, request, signed)

        return guarded

    async def _rebuild(self, request: Request, error: Exception) -> Response:
        self.woken.set()
        return await refused(request, Problem(503, "restarting", "the server starts again; come back", pause=1))
