"""A device's signs of life for the task that it works on, from a thread beside the work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedasmu.network.client import Client
from fedasmu.network.download import head
from fedasmu.system.process import started

REVISITS = 5  # new visits within a task, at most


class Beats:
    """They begin when a task's first bytes have come: a large model may take longer than an offer is good for."""

    def __init__(self, client: Client, pause: float, revisit: Callable[[str], None]) -> None:
        """`revisit` opens a new visit in the place of the one with this name."""
        self._client, self._pause, self._revisit = client, pause, revisit
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self.lost = threading.Event()  # the server has given the task up

    def __enter__(self) -> Beats:
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def heard(self, frame: bytearray) -> None:
        """Is shown a task's frame as it comes."""
        if self._thread is None and isinstance(task := head(frame)[0].get("id"), int):
            self._thread = started(lambda: self._beat(task), f"beat-{task}")

    def _beat(self, task: int) -> None:
        pause, revisits = 0.0, 0
        while not self._done.wait(pause) and not self.lost.is_set():
            visit = self._client.visit
            reply = self._client.once("POST", f"/v1/tasks/{task}/beat")
            pause = self._pause if reply is not None else min(1.0, self._pause)
            if reply is not None and reply.status == 410:
                self.lost.set()
            # A server that was started again knows no visits; two processes with one key would do this for ever.
            if reply is not None and reply.status == 401 and revisits < REVISITS:
                pause, revisits = 0.0, revisits + 1
                try:
                    self._revisit(visit)
                except Exception:  # the device will meet it too, and knows what to say
                    return
