"""After the end: whoever still comes is told that the run is over."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedasmu.network.deadline import Patience
from fedasmu.network.door import Problem
from fedasmu.network.listener import Listener
from fedasmu.network.replies import refused

OVER = Problem(410, "over", "the run is over")


async def _over(request: Request) -> Response:
    return await refused(request, OVER)


def tell(listening: Any, context: ssl.SSLContext | None, per_address: int, stopping: threading.Event) -> None:
    """Say so to everybody, until this process is stopped."""

    async def serve() -> None:
        app = Starlette(routes=[Route("/{path:path}", _over, methods=["GET", "POST", "PUT"])])
        listener = Listener(app, listening.dup(), context, Patience(), per_address)
        listener.start()
        while not stopping.is_set():
            await asyncio.sleep(0.1)
        await listener.stop(1.0)

    asyncio.run(serve())
