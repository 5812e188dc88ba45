"""Runs the cells of a study side by side, each whole in a process of its own with one thread.

Many small runs fill the cores best that way, and a run that fails, or takes too much memory, takes nobody with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from fedasmu import pools
from fedasmu.errors import DeviceError, Interrupted, UserError, is_refusal, refusal
from fedasmu.events import Event, Measured
from fedasmu.experiment import Experiment
from fedasmu.server.desk import Desk
from fedasmu.study import remote
from fedasmu.study.board import Board
from fedasmu.study.cells import Cell, stages
from fedasmu.study.forking import start_method
from fedasmu.system.process import stop_request

Workers = int | str  # how many at once; inline: one by one, here; ray, or the address of a Ray cluster
Failures = list[tuple[Cell, str]]  # with the reason
REPORT_EVERY = 0.5  # seconds between two reports of a cell
PATIENCE = 30.0  # seconds to wait for another process that works on the same cell


def run(cells: Sequence[Cell], workers: Workers, board: Board, overwrite: bool = False) -> Failures:
    """Run what is not finished. Raises `Interrupted` when the user stops it; everything so far is kept."""
    reached = stages(cells, overwrite)  # refuses before anything starts
    due = [cell for cell, how_far in zip(cells, reached, strict=True) if how_far != "finished"]
    pools.factory(workers)
    at_once = workers if isinstance(workers, int) else 1
    with stop_request() as stopping, board.shown(due, at_once, len(cells) - len(due)):
        if isinstance(workers, int):
            return _Crew(due, workers, board, stopping).work()
        if workers == "inline":
            return _one_by_one(due, board, stopping)
        return remote.run(due, workers, board, stopping, _perform)


def _one_by_one(due: Sequence[Cell], board: Board, stopping: threading.Event) -> Failures:
    failed: Failures = []
    for cell in due:
        if stopping.is_set():
            raise Interrupted
        board.started(cell)
        kind, text = _perform(cell, partial(board.heard, cell))
        board.ended(cell, kind)
        if kind == "stopped":
            raise Interrupted
        if kind == "failed":
            failed.append((cell, text))
    return failed


class _Crew:
    """As many processes at once as there are workers."""

    def __init__(self, due: Sequence[Cell], workers: int, board: Board, stopping: threading.Event) -> None:
        self.waiting, self.workers, self.board, self.stopping = list(due), workers, board, stopping
        self.context: Any = multiprocessing.get_context(start_method())
        self.busy: dict[Connection, tuple[Any, Cell]] = {}
        self.failed: Failures = []
        self.asked = False

    def work(self) -> Failures:
        try:
            while self.busy or (self.waiting and not self.stopping.is_set()):
                while self.waiting and len(self.busy) < self.workers and not self.stopping.is_set():
                    self._start(self.waiting.pop(0))
                for pipe in wait(list(self.busy), timeout=REPORT_EVERY):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
                if self.stopping.is_set():
                    self._stop()
                self.board.refresh()
        finally:
            for process, _ in self.busy.values():
                process.terminate()
        if self.stopping.is_set():
            raise Interrupted
        return self.failed

    def _start(self, cell: Cell) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_work, args=(cell, theirs))
        process.start()
        theirs.close()
        self.busy[ours] = process, cell
        self.board.started(cell)

    def _hear(self, pipe: Connection) -> None:
        process, cell = self.busy[pipe]
        try:
            kind, value = pipe.recv()
        except EOFError:  # it ended without a word
            process.join()
            kind = "stopped" if self.stopping.is_set() else "failed"
            value = f"its process ended with code {process.exitcode}; was there enough memory?"
        if kind not in ("finished", "failed", "stopped"):
            self.board.heard(cell, (kind, value))
            return
        del self.busy[pipe]
        pipe.close()
        process.join()
        self.board.ended(cell, kind)
        if kind == "failed":
            self.failed.append((cell, value))

    def _stop(self) -> None:
        """Ask once: a second request would end them before they have saved."""
        if not self.asked:
            self.asked = True
            for process, _ in self.busy.values():
                process.terminate()


def _work(cell: Cell, pipe: Connection) -> None:
    """The life of a worker process: one cell."""
    os.setpgrp()  # Ctrl-C goes to the parent alone, which then asks everybody once
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(message: tuple[str, Any]) -> None:
        with suppress(OSError):  # the parent is gone: the thread sees to that
            pipe.send(message)

    tell(_perform(cell, tell))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)  # saves, and ends


def _perform(cell: Cell, tell: Callable[[tuple[str, Any]], None]) -> tuple[str, str]:
    trouble = cell.directory / "error.txt"
    try:
        trouble.unlink(missing_ok=True)
        _run_locked(cell, tell)
    except Interrupted:
        return "stopped", ""
    except (UserError, DeviceError) as error:
        reason = str(error)
    except Exception as error:
        reason = refusal(error, cell.directory) if is_refusal(error) else traceback.format_exc()
    else:
        return "finished", ""
    with suppress(OSError):  # the disk may be what failed
        cell.directory.mkdir(parents=True, exist_ok=True)
        trouble.write_text(reason + "\n")
    return "failed", reason


def _run_locked(cell: Cell, tell: Callable[[tuple[str, Any]], None]) -> None:
    """A worker whose parent was killed may still be saving: wait for it, and go on from what it saved."""
    last = 0.0

    def observe(desk: Desk, line: Event | Measured) -> None:
        nonlocal last
        if (now := time.monotonic()) - last > REPORT_EVERY:
            last = now
            tell(("uploads", desk.server.counters.received))

    with cell.alone(PATIENCE):
        resume = cell.stage() != "new"
        say = lambda message: tell(("say", message))  # noqa: E731
        Experiment(cell.config).run(cell.directory, resume=resume, observe=observe, say=say, trackers=cell.track)
