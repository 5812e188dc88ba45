"""A device's signs of life for the task that it works on, from a thread beside the work."""

from __future__ import annotations

import threading

from fedasmu.network.client import Client
from fedasmu.network.download import head
from fedasmu.system.process import started


class Beats:
    """They begin when a task's first bytes have come: a large model may take longer than an offer is good for."""

    def __init__(self, client: Client, pause: float) -> None:
        self._client, self._pause = client, pause
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
        pause = 0.0
        while not self._done.wait(pause) and not self.lost.is_set():
            reply = self._client.once("POST", f"/v1/tasks/{task}/beat")
            pause = self._pause if reply is not None else min(1.0, self._pause)
            if reply is not None and reply.status == 410:
                self.lost.set()
