"""Accepts connections: a gate for each address before the costly handshake, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from dataclasses import dataclass
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from fedasmu.errors import UserError
from fedasmu.network.deadline import Deadlined, Patience

SPARE_FILES = 128  # that are not connections
TLS_BUFFER = 32 * 1024  # for each connection; asyncio's own is 256 kB


@dataclass(slots=True)
class Bucket:
    """So many a second, with some at once."""

    rate: float
    burst: float
    tokens: float
    time: float = 0.0

    def filled(self, now: float) -> float:
        return min(self.burst, self.tokens + (now - self.time) * self.rate)

    def take(self, now: float) -> bool:
        self.tokens, self.time = self.filled(now), now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Buckets:
    """One for each who. Of many, those that are full again are forgotten: a new one is as full, so no limit is lost."""

    MANY = 10_000

    def __init__(self) -> None:
        self._of: dict[object, Bucket] = {}
        self._most = self.MANY

    def __len__(self) -> int:
        return len(self._of)

    def take(self, who: object, rate: float, burst: float, now: float) -> bool:
        if len(self._of) > self._most:
            self._of = {one: bucket for one, bucket in self._of.items() if bucket.filled(now) < bucket.burst}
            self._most = max(self.MANY, 2 * len(self._of))
        return self._of.setdefault(who, Bucket(rate, burst, burst, now)).take(now)


class Gate:
    """How many connections an address may open. 0: any number."""

    RATE, BURST = 20.0, 100.0

    def __init__(self, per_address: int) -> None:
        self.per_address = per_address
        self.open: Counter[str] = Counter()
        self.buckets = Buckets()
        self.total = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES)

    def admits(self, address: str, now: float) -> bool:
        if self.open.total() >= self.total:
            return False
        if not self.per_address:
            return True
        return self.open[address] < self.per_address and self.buckets.take(address, self.RATE, self.BURST, now)


def bound(host: str, port: int, option: str = "--listen ADDRESS:PORT") -> socket.socket:
    """A listening socket, or a sentence about why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{host}:{port}: {reason}; choose another with {option}") from None
    listening.setblocking(False)
    return listening


class Listener:
    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        patience: Patience,
        per_address: int,
        proxied: bool = False,
    ) -> None:
        """Who comes by a proxy has the address that the proxy tells; nobody else is asked for theirs."""
        self.listening, self.context, self.patience = listening, context, patience
        self.gate = Gate(0 if proxied else per_address)
        # Of requests that are none nothing is said: strangers send them, as many as they like.
        quiet: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False}
        options: dict[str, Any] = {"lifespan": "off", "ws": "none", **quiet}
        self.config = Config(app, proxy_headers=proxied, **options)
        self.config.load()
        self.state = ServerState()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        sslproto.SSLProtocol.max_size = TLS_BUFFER

    def start(self) -> None:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self, seconds: float) -> None:
        """No new connections; requests under way may end, for so long."""
        if self._accepting is not None:
            self._accepting.cancel()
        self.listening.close()
        for task in self._handshakes:
            task.cancel()
        for connection in list(self.state.connections):
            connection.shutdown()
        await self._ended(seconds)
        for connection in list(self.state.connections):
            connection.transport.abort()
        await self._ended(1.0)

    async def _ended(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state.connections or self.state.tasks:
                    await asyncio.sleep(0.02)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self.listening)
            except OSError:  # no descriptor left, or the peer is gone already
                await asyncio.sleep(0.05)
                continue
            if not self.gate.admits(address, loop.time()):
                connection.close()
                continue
            self.gate.open[address] += 1
            task = loop.create_task(self._welcome(connection, address))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _welcome(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        accepted = loop.time()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls: dict[str, Any] = {}
        if self.context is not None:  # a peer that does not say goodbye is not waited for
            tls = {"ssl_handshake_timeout": self.patience.seconds, "ssl_shutdown_timeout": 1.0}
        try:
            await loop.connect_accepted_socket(
                lambda: _Counted(self, address, accepted), sock=connection, ssl=self.context, **tls
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            connection.close()
            self._gone(address)

    def _gone(self, address: str) -> None:
        self.gate.open[address] -= 1
        if not self.gate.open[address]:
            del self.gate.open[address]


class _Counted(Deadlined):
    """A connection that tells the gate when it ends. Behind a failed handshake it never began."""

    def __init__(self, listener: Listener, address: str, accepted: float) -> None:
        options = {"config": listener.config, "server_state": listener.state, "app_state": {}}
        super().__init__(listener.patience, accepted, **options)
        self._listener, self._address, self._made = listener, address, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._made = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._made:
            self._listener._gone(self._address)
