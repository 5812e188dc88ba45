"""Devices in an event loop: thousands of them in one process, each with a connection of its own."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fedasmu
from fedasmu.network import wire
from fedasmu.network.connection import Reply
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key, content_digest, encoded, hello_text, request_text
from fedasmu.protocol import Report
from trials.devices import EXAMPLES, task_in
from trials.peers import CONTEXT, request

NEIGHBOURS = 50  # devices behind one address


def pollers_of(folder: Folder, devices: int, fetch: bool = False) -> list[Poller]:
    """As many devices, all of them with a seat."""
    keys = [Key(Ed25519PrivateKey.generate()) for _ in range(devices)]
    invite = folder.invite(uses=devices)
    for number, key in enumerate(keys):
        folder.register.enrol(invite.id, key.public, f"poller-{number}", EXAMPLES)
    return [Poller(folder.port, folder.run, key, number, fetch) for number, key in enumerate(keys)]


@dataclass
class Poller:
    """Polls, and if it gets a task asks for a fresh model, if it is to, and sends the model back at once."""

    port: int
    run: str
    key: Key
    number: int
    fetch: bool = False
    polls: int = 0
    broken: int = 0  # connections
    refusals: int = 0  # because the server was busy
    waits: list[float] = field(default_factory=list)  # seconds of each upload, to its acknowledgement
    tasks: list[int] = field(default_factory=list)  # that were acknowledged
    _visit: str = ""
    _closed: bool = False  # the server has told it to come back later, with another connection
    _sequence: Any = field(default_factory=count)

    async def live(self, opening: asyncio.Semaphore) -> None:
        source = f"127.0.{1 + self.number // NEIGHBOURS // 250}.{1 + self.number // NEIGHBOURS % 250}"
        while True:
            try:
                async with opening:
                    self._streams = await asyncio.open_connection(
                        "127.0.0.1", self.port, ssl=CONTEXT, local_addr=(source, 0)
                    )
                    if not self._visit:
                        await self._hello()
                self._closed = False
                while not self._closed:
                    pause = await self._poll()
                    if self._closed:
                        self._streams[1].close()
                    await asyncio.sleep(pause)
            except (OSError, EOFError, ValueError):
                self.broken += 1
                await asyncio.sleep(1.0)
            finally:
                if hasattr(self, "_streams"):
                    self._streams[1].close()

    async def _hello(self) -> None:
        """A server looks a few times a second whether there are new seats, so a new one may have to wait."""
        for _ in range(600):
            reply = await self._greet()
            if reply.status == 200:
                self._visit = reply.table["visit"]
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"not welcome: {reply.table}")

    async def _greet(self) -> Reply:
        greeting = await self._ask("GET", "/v1/hello", b"", {})
        if greeting.status != 200:
            return greeting
        challenge = greeting.table["challenge"]
        signature = encoded(self.key.sign(hello_text(self.run, challenge, self.key.public)))
        table = {"key": encoded(self.key.public), "challenge": challenge, "signature": signature}
        table |= {"examples": EXAMPLES, "wire": wire.VERSION, "fedasmu": fedasmu.__version__}
        return await self._ask("POST", "/v1/hello", json.dumps(table).encode(), {})

    async def _poll(self) -> float:
        """Seconds after which to come back."""
        reply = await self._signed("GET", "/v1/task?wait=25")
        self.polls += 1
        if reply.status != 200:
            return reply.pause
        task = task_in(reply)
        if self.fetch:
            await self._signed("POST", f"/v1/tasks/{task.id}/fresh?ask=0")
        body = wire.report_frame(Report(task.model.vector, EXAMPLES, 0.5), {})
        began = time.monotonic()
        if (await self._signed("PUT", f"/v1/tasks/{task.id}/result", body)).status == 200:
            self.waits.append(time.monotonic() - began)
            self.tasks.append(task.id)
        return 0.0

    async def _signed(self, method: str, target: str, body: bytes = b"") -> Reply:
        """As a device does: where the server is busy, the same again after the pause that it asks for."""
        while (reply := await self._once(method, target, body)).status in (429, 503):
            self.refusals += 1
            await asyncio.sleep(reply.pause + random.random())
        return reply

    async def _once(self, method: str, target: str, body: bytes) -> Reply:
        digest, sequence = content_digest(body), next(self._sequence)
        text = request_text(self.run, method, target, self.number, self._visit, sequence, digest)
        headers = {
            "fedasmu-device": str(self.number),
            "fedasmu-visit": self._visit,
            "fedasmu-sequence": str(sequence),
            "fedasmu-signature": encoded(self.key.sign(text)),
            "content-digest": digest,
        }
        return await self._ask(method, target, body, headers)

    async def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        reader, writer = self._streams
        writer.write(request(method, target, body, headers))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        data = await reader.readexactly(int(fields.get("content-length", "0")))
        self._closed = fields.get("connection") == "close"
        return Reply(int(head[0].split()[1]), data, float(fields.get("retry-after", "0")))
