"""A bad network between devices and the server: connections that are dropped, exchanges that are hurt."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

HOST = "127.0.0.1"
PIECE = 16_384  # bytes that are passed on at a time
DROPPED = 0.20  # of the connections
FATES = {"doubled": 0.10, "delayed": 0.10, "cut": 0.05, "flipped": 0.01}  # of the exchanges
DELAY = 3.0  # seconds, at most


@dataclass(slots=True)
class Exchange:
    """A request and its reply: what happens to it, and at which of its pieces."""

    fate: str = ""
    left: int = 0
    asking: bool = False  # bytes of a request were passed on last
    lock: threading.Lock = field(default_factory=threading.Lock)

    def turn(self, asking: bool, chance: random.Random) -> str:
        """What happens to this piece: mostly nothing."""
        with self.lock:
            if asking and not self.asking:  # a new request
                self.fate = chance.choices([*FATES, ""], [*FATES.values(), 1 - sum(FATES.values())])[0]
                self.left = chance.randrange(8)
            self.asking = asking
            self.left -= 1
            if self.left >= 0 or not self.fate:
                return ""
            fate, self.fate = self.fate, ""
            return fate


class Proxy(threading.Thread):
    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._target, self._chance = port, random.Random(seed)
        self._listening = socket.create_server((HOST, 0), backlog=256)
        self.port = self._listening.getsockname()[1]
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while True:
            near, _ = self._listening.accept()
            self.counts["connections"] += 1
            if self._chance.random() < DROPPED:
                self.counts["dropped"] += 1
                near.close()
                continue
            try:
                far = socket.create_connection((HOST, self._target), 5)
            except OSError:
                near.close()
                continue
            exchange = Exchange()
            for asking, source, sink in ((True, near, far), (False, far, near)):
                threading.Thread(target=self._pump, args=(exchange, asking, source, sink), daemon=True).start()

    def _pump(self, exchange: Exchange, asking: bool, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                fate = exchange.turn(asking, self._chance)
                if fate:
                    self.counts[fate] += 1
                if fate == "cut":
                    break
                sink.sendall(self._hurt(data, fate))
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _hurt(self, data: bytes, fate: str) -> bytes:
        if fate == "delayed":
            time.sleep(self._chance.random() * DELAY)
        if fate == "flipped":
            place = self._chance.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data + data if fate == "doubled" else data
