"""HTTP with deadlines: no peer holds a connection by being slow. uvicorn's protocol has no timeouts of its own.

A connection's first head must be there 10 s after it was accepted, each later one 10 s after its first byte, a body
10 s later plus a second for each 16 kB, and a reply must be read as fast. A head has at most 32 kB, and a body no more
than the largest that anybody may send.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BUFFER = 1 << 16  # bytes of a reply that wait for a peer to read, before no more are put there
DEVICE = "fedasmu.device"  # the application puts this into a request's scope once it knows who speaks


@dataclass(frozen=True, slots=True)
class Patience:
    seconds: float = 10.0  # for a handshake and a first head together, for each later head, and for what comes next
    least: float = 2.0  # for a first head, however long the handshake took
    rate: float = 16_384.0  # bytes a second, of bodies and replies
    idle: float = 30.0  # between two requests of a device; others get `seconds`
    head: int = 32_768  # bytes
    body: int = 1 << 20  # bytes


class Deadlined(HttpToolsProtocol):
    """One connection."""

    def __init__(self, patience: Patience, accepted: float | None = None, **options: Any) -> None:
        """Accepted at this time of the event loop: what the handshake took is of the first request's time."""
        super().__init__(**options)
        self.patience, self._accepted = patience, accepted
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._read_by: float | None = None  # when a reply that was not read at once must have been
        self._head = 0  # bytes of the head so far
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER)
        self._expect(0)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._reading is None:
            self._expect(0)
        if not self._in_body:
            self._head += len(data)
        super().data_received(data)
        if not self._in_body and self._head > self.patience.head:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > self.patience.body:
            self.transport.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
            return
        self._in_body = True
        self._expect(int(length))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._in_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_body:
            return
        self._in_body, self._head = False, 0
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        known = self.cycle.scope.get(DEVICE) is not None
        self.timeout_keep_alive = self.patience.idle if known else self.patience.seconds  # type: ignore[assignment]
        if self._in_body and not known:  # a stranger was answered: the rest of the body is not worth waiting for
            self._expect(0)
        self._accepted = self._read_by = None
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        """The time is that of the whole reply: reading a little now and then does not prolong it.

        A stream has no end, so each part of it that waits has a time of its own.
        """
        super().pause_writing()
        if self._read_by is None:
            left = self.transport.get_write_buffer_size() + self.cycle.expected_content_length
            self._read_by = self.loop.time() + self.patience.seconds + left / self.patience.rate
        self._writing = self.loop.call_at(self._read_by, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self.cycle is not None and self.cycle.chunked_encoding:
            self._read_by = None
        super().resume_writing()

    def _expect(self, length: int) -> None:
        """The next so many bytes, or the connection is cut."""
        if self._reading is not None:
            self._reading.cancel()
        seconds = self.patience.seconds
        if self._accepted is not None:
            seconds = max(seconds - (self.loop.time() - self._accepted), self.patience.least)
        self._reading = self.loop.call_later(seconds + length / self.patience.rate, self.transport.abort)
