"""Runs the cells of a study on the machines of a Ray cluster, each whole on one processor.

A cell's run directory travels: what is there goes to the node, and comes back when the run has ended, failed or was
stopped. A run whose node dies is begun again on another, from what was here.
"""

from __future__ import annotations

import io
import platform
import shutil
import signal
import tarfile
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedasmu.errors import Interrupted
from fedasmu.pools import connection
from fedasmu.study.board import Board
from fedasmu.study.cells import Cell

Perform = Callable[[Cell, Callable[[tuple[str, Any]], None]], tuple[str, str]]
EVERY = 0.5  # seconds between two looks at what the nodes say


class Post:
    """Lies on the driver's node. The nodes leave word there, and see whether the user wants them to stop."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, tuple[str, Any]]] = []
        self.stopped = False

    def leave(self, cell: int, message: tuple[str, Any]) -> bool:
        self.letters.append((cell, message))
        return self.stopped

    def fetch(self, stopped: bool) -> list[tuple[int, tuple[str, Any]]]:
        self.stopped = stopped
        letters, self.letters = self.letters, []
        return letters


def run(
    due: Sequence[Cell], address: str, board: Board, stopping: threading.Event, perform: Perform
) -> list[tuple[Cell, str]]:
    """The cells that failed, with the reason."""
    ray, ours = connection.connect(address)
    try:
        with ExitStack() as locks:
            for cell in due:
                locks.enter_context(cell.alone(patience=0.0))
            return _Spread(due, ray, board, stopping, perform).work()
    finally:
        if ours:
            ray.shutdown()


class _Spread:
    def __init__(
        self, due: Sequence[Cell], ray: Any, board: Board, stopping: threading.Event, perform: Perform
    ) -> None:
        self.due, self.ray, self.board, self.stopping = due, ray, board, stopping
        connection.send_own_modules(ray)
        self.post = ray.remote(Post).options(num_cpus=0, scheduling_strategy=connection.here(ray)).remote()
        task = ray.remote(_on_a_node).options(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")
        self.under_way = {
            task.remote(number, cell, packed(cell.directory), self.post, perform): cell
            for number, cell in enumerate(due)
        }
        self.begun: set[int] = set()
        self.failed: list[tuple[Cell, str]] = []

    def work(self) -> list[tuple[Cell, str]]:
        while self.under_way:
            ready, _ = self.ray.wait(list(self.under_way), num_returns=1, timeout=EVERY)
            for number, message in self.ray.get(self.post.fetch.remote(self.stopping.is_set())):
                self._hear(number, message)
            for ref in ready:
                self._end(self.under_way.pop(ref), ref)
            self.board.refresh()
        if self.stopping.is_set():
            raise Interrupted
        return self.failed

    def _hear(self, number: int, message: tuple[str, Any]) -> None:
        cell = self.due[number]
        if message[0] != "began":
            self.board.heard(cell, message)
        elif number in self.begun:
            self.board.heard(cell, ("say", f"{cell}: its node died; it is begun again on {message[1]}"))
        else:
            self.begun.add(number)
            self.board.started(cell)

    def _end(self, cell: Cell, ref: Any) -> None:
        try:
            kind, text, directory = self.ray.get(ref)
            unpack(directory, cell.directory)
        except self.ray.exceptions.RayError as error:
            kind, text = "failed", f"on the cluster: {connection.reason(error)}"
        self.board.ended(cell, kind)
        if kind == "failed":
            self.failed.append((cell, text))


def _on_a_node(number: int, cell: Cell, directory: bytes, post: Any, perform: Perform) -> tuple[str, str, bytes]:
    import ray

    asked = False

    def tell(message: tuple[str, Any]) -> None:
        nonlocal asked
        if ray.get(post.leave.remote(number, message)) and not asked:
            asked = True  # once: a second signal would end the run before it has saved
            signal.raise_signal(signal.SIGINT)

    if ray.get(post.leave.remote(number, ("began", platform.node()))):
        return "stopped", "", directory
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / cell.directory.name
        unpack(directory, there)
        kind, text = perform(replace(cell, directory=there), tell)
        text = text if kind != "failed" else f"on node {platform.node()}: {text}"
        return kind, text, packed(there)


def packed(directory: Path) -> bytes:
    """A run directory as bytes; none at all if there is none."""
    buffer = io.BytesIO()
    if directory.is_dir():
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(directory, arcname=".")
    return buffer.getvalue()


def unpack(directory: bytes, place: Path) -> None:
    """Whole or not at all: what is there is replaced when all has arrived."""
    if not directory:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as folder:
        with tarfile.open(fileobj=io.BytesIO(directory)) as tar:
            tar.extractall(Path(folder) / "new", filter="data")
        if place.exists():
            place.rename(Path(folder) / "old")
        shutil.move(Path(folder) / "new", place)
