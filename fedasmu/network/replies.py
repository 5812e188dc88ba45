"""Small things that the routes share: what a request says, and how a refusal is put."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from fedasmu.network import failpoint
from fedasmu.network.displaced import LABEL
from fedasmu.network.door import Problem
from fedasmu.network.ledger import Ledger, is_full
from fedasmu.network.wire import Buffers

WAIT = 5  # seconds until a full disk may have room again
AWAY = 10  # seconds: a shorter pause is not worth a new handshake
CODE = "fedasmu.code"  # in the scope of a request that was refused: why
PIECE = 1 << 16  # bytes of a reply that are handed over at a time


class Framed(Response):
    """A frame, or what of it comes from one byte on. Whoever reads slowly holds a piece of it and no copy.

    All at once would be dear: OpenSSL's buffer grows to the longest that was ever put into it, for each connection.
    """

    media_type = "application/x-fedasmu"

    def __init__(self, buffers: Buffers, first: int = 0, headers: Mapping[str, str] | None = None) -> None:
        self._buffers, self._first = buffers, first
        length = sum(map(len, buffers))
        told = {"Content-Range": f"bytes {first}-{length - 1}/{length}"} if first else {}
        status = HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK
        super().__init__(None, status, {**(headers or {}), **told, "Content-Length": str(length - first)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in pieces(self._buffers, self._first):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def pieces(buffers: Buffers, first: int = 0) -> Iterator[memoryview]:
    """These bytes from the first that is wanted on, none of them copied."""
    for buffer in buffers:
        for place in range(first, len(buffer), PIECE):
            yield memoryview(buffer)[place : place + PIECE]
        first = max(first - len(buffer), 0)


async def hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def told(ledger: Ledger, response: Response) -> Response:
    """No reply tells of anything that a crash would undo."""
    await ledger.durable()
    failpoint.reach("reply")
    return response


def seconds_of(request: Request, longest: float) -> float:
    try:
        return max(0.0, min(float(request.query_params.get("wait", longest)), longest))
    except ValueError:
        raise Problem(400, "wait", "wait must be a number of seconds") from None


def training_of(request: Request) -> float | None:
    """Seconds that a device says to have trained for; None: it does not say, or what cannot be."""
    try:
        seconds = float(request.headers["fedasmu-training"])
    except (KeyError, ValueError):
        return None
    return seconds if 0 <= seconds < math.inf else None


def number_of(request: Request, name: str) -> int:
    """A number in the path. It is a text until here, of any length: who sends it may be a stranger."""
    text = request.path_params[name]
    if not re.fullmatch(r"\d{1,16}", text, re.ASCII):
        raise Problem(404, "number", f"there is no such {name}")
    return int(text)


def task_of(request: Request) -> int:
    return number_of(request, "task")


def range_of(request: Request) -> int:
    """The first byte that is asked for. Only `bytes=N-` is known; any other range is answered with the whole."""
    found = re.fullmatch(r"bytes=(\d{1,15})-", request.headers.get("range", ""), re.ASCII)
    return int(found[1]) if found else 0


def offset_of(request: Request) -> int:
    """The first byte of the upload that this body has."""
    given = request.headers.get("upload-offset", "0")
    if not re.fullmatch(r"\d{1,15}", given, re.ASCII):
        raise Problem(400, "offset", "Upload-Offset must be a number of bytes")
    return int(given)


def label_of(request: Request, name: str) -> str:
    """A label of a model in the query; empty: there is none that could be one."""
    label = request.query_params.get(name, "")
    return label if LABEL.fullmatch(label) else ""


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


# These are coroutines so that a refusal costs no thread: starlette runs handlers that are none in one.
async def refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    request.scope[CODE] = problem.code
    headers = {"Retry-After": str(problem.pause)} if problem.pause else {}
    return JSONResponse({"error": problem.code, "say": str(problem)}, problem.status, headers)


async def gone(request: Request, error: Exception) -> Response:
    return await refused(request, Problem(410, "gone", "this task is not yours, or not any more"))


async def nowhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await refused(request, Problem(error.status_code, str(error.status_code), "there is nothing here"))


async def full(request: Request, error: Exception) -> Response:
    return await refused(
        request, Problem(507, "disk-full", "the server's disk is full; it goes on by itself", pause=WAIT)
    )


async def full_or_broken(request: Request, error: Exception) -> Response:
    """A file beside the ledger, as the register is, may be what has no room."""
    if not is_full(error):
        raise error
    return await full(request, error)


def later(pause: int) -> Response:
    """There is no task. Who is to stay away for long does not keep a connection meanwhile: 5,000 would take 500 MB."""
    away = {"Connection": "close"} if pause > AWAY else {}
    return Response(status_code=204, headers={"Retry-After": str(pause), **away})


async def left(request: Request, error: Exception) -> Response:
    """Whoever asked has gone away. That is no failure of anybody's, and nobody hears this."""
    return Response()


async def broken(request: Request, error: Exception) -> Response:
    return await refused(request, Problem(500, "broken", "the server failed on this request"))
