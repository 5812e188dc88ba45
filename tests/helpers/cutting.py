"""A proxy that cuts every connection once so many bytes have gone one way: for tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"


class Cutting:
    def __init__(self, port: int, after: int, upward: bool = False) -> None:
        """The bytes that count are the server's, or those that are sent up to it."""
        self._target = port
        self._up = after if upward else None
        self._down = None if upward else after
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                server = socket.create_connection((HOST, self._target))
                threading.Thread(target=self._pass_on, args=(peer, server, self._up), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, peer, self._down), daemon=True).start()

    def _pass_on(self, source: socket.socket, goal: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096 if left is None else min(4096, left)):
                goal.sendall(data)
                left = None if left is None else left - len(data)
                if left == 0:
                    self.cuts += 1
                    break
        for one in (source, goal):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting(port: int, after: int, upward: bool = False) -> Iterator[Cutting]:
    proxy = Cutting(port, after, upward)
    try:
        yield proxy
    finally:
        proxy.close()
