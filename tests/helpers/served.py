"""A listener in a thread with a real TLS socket, for tests."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedasmu.network import certificate
from fedasmu.network.deadline import Patience
from fedasmu.network.listener import Listener, bound

HOST = "127.0.0.1"


@dataclass
class Served:
    port: int
    pin: bytes
    listener: Listener
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def ask(self, question: Callable[[], Any]) -> Any:
        """Answered in the server's thread."""

        async def answer() -> Any:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(20)


@contextmanager
def served(app: Any, folder: Path, patience: Patience | None = None, per_address: int = 0) -> Iterator[Served]:
    pin = certificate.make(folder, "current", [HOST])
    context = certificate.server_context(folder / "current.pem", folder / "current.key")
    listening = bound(HOST, 0)
    ready, stopping = threading.Event(), asyncio.Event()
    found: list[Served] = []

    async def serve() -> None:
        listener = Listener(app, listening, context, patience or Patience(), per_address)
        listener.start()
        found.append(Served(listening.getsockname()[1], pin, listener, asyncio.get_running_loop()))
        ready.set()
        await stopping.wait()
        await listener.stop(1.0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(stopping.set)
        thread.join(20)
        assert not thread.is_alive()


def trusting() -> ssl.SSLContext:
    """For tests that look at the connection itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Whether it comes true: looked at again and again, for longer than any machine needs."""
    for _ in range(int(seconds / 0.02)):
        if found := condition():
            return found
        time.sleep(0.02)
    return condition()
