"""The page and its stream: read-only, and only for those who may look.

`/stream` never ends: it tells how the runs stand whenever that changes, and of the run that is looked at every new line
of its events and metrics. A browser that comes back says how far it had got, and goes on from there. `/metrics` is for
Prometheus, `/healthz` for whoever asks whether the page is there.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fedasmu.watch import prometheus, service
from fedasmu.watch.follow import Place, news
from fedasmu.watch.runs import Run, find

PAUSE = 0.5  # seconds between two looks at the disk
OVERVIEW = 4  # looks between two of them at all runs
SENT = ("anew", "events", "metrics", "wall")
COOKIE = "fedasmu-watch"
PARTS = ("fedasmu.report.page", "fedasmu.watch.page")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"


def application(folder: Path, hosts: set[str], token: str | None) -> ASGIApp:
    async def page(request: Request) -> Response:
        answer = HTMLResponse(_page(), headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})
        if token is not None:
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    async def stream(request: Request) -> Response:
        chosen = request.query_params.get("run", "")
        place = Place.parse(request.headers.get("last-event-id", ""))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_told(folder, chosen, place), media_type="text/event-stream", headers=headers)

    async def metrics(request: Request) -> Response:
        run = next((one for one in find(folder) if one.label == request.query_params.get("run")), None)
        return PlainTextResponse(news(run.directory, Place()).metrics if run else "")

    async def scraped(request: Request) -> Response:
        found = await asyncio.to_thread(lambda: prometheus.text(find(folder)))
        return Response(found, media_type=prometheus.CONTENT)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"watching": folder.is_dir()})

    routes = [Route("/", page), Route("/stream", stream), Route("/run.csv", metrics)]
    routes += [Route("/metrics", scraped), Route("/healthz", healthz)]
    return Guarded(Starlette(routes=routes), hosts, token)


def _is_number(host: str) -> bool:
    """Whether this is an address in numbers: another site can give a name of its own to this machine, not a number."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Guarded:
    """Whom another site sends here is turned away (Host is checked), and so is whoever lacks the token."""

    def __init__(self, app: ASGIApp, hosts: set[str], token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host = re.sub(r":\d+$", "", request.headers.get("host", ""))
        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self.app
        if host not in self.hosts and not (self.token is not None and _is_number(host)):
            answer = PlainTextResponse("this page is not served under that name\n", 421)
        elif request.method not in ("GET", "HEAD"):
            answer = PlainTextResponse("there is nothing to change here\n", 405)
        elif self.token is not None and not self._known(request):
            answer = PlainTextResponse("open the address that `fedasmu watch` printed, with its token\n", 403)
        await answer(scope, receive, send)

    def _known(self, request: Request) -> bool:
        given = request.query_params.get("token") or request.cookies.get(COOKIE) or ""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


async def _told(folder: Path, chosen: str, place: Place) -> AsyncIterator[str]:
    runs: list[Run] = []
    overviews: list[dict[str, Any]] | None = None
    served: dict[str, Any] | None = None
    for look in itertools.count():
        if look % OVERVIEW == 0:
            runs = await asyncio.to_thread(find, folder)
            now = await asyncio.to_thread(lambda found: [run.overview() for run in found], runs)
            if now != overviews:
                overviews = now
                yield _message("runs", {"runs": overviews}, place)
        if (run := _looked_at(runs, chosen)) is not None:
            service_now = await asyncio.to_thread(service.read, run.directory)
            if service_now is not None and service_now != served:
                served = service_now
                yield _message("service", served, place)
            found = await asyncio.to_thread(news, run.directory, place)
            place = found.place
            if found:
                yield _message("lines", {name: getattr(found, name) for name in SENT}, place)
                continue  # there may be more at once
        await asyncio.sleep(PAUSE)


def _looked_at(runs: list[Run], chosen: str) -> Run | None:
    """The run of that name; without one, the only run there is."""
    return next((run for run in runs if run.label == chosen), runs[0] if len(runs) == 1 else None)


def _message(kind: str, told: Mapping[str, Any], place: Place) -> str:
    return f"event: {kind}\nid: {place}\ndata: {json.dumps(told)}\n\n"


def _page() -> str:
    return re.sub(r"{{(.+?)}}", lambda place: _part(place[1]), _part("watch.html"))


def _part(name: str) -> str:
    """A part of this page, or of the report's, which it shares its looks and its charts with."""
    found = [files(package).joinpath(name) for package in PARTS]
    return next(path.read_text(encoding="utf-8") for path in reversed(found) if path.is_file())
