"""What a run asks of the process that it is in: one thread of torch, and that signals stop it with grace."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread a process, in this one too, so that the bits do not depend on where a computation runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """An event that Ctrl-C (SIGTERM, a closed terminal) sets. A second one ends the process at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def request(number: int, frame: Any) -> None:
        stopping.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # started by nohup
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, request)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
