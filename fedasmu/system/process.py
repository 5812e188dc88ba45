"""What a run asks of the process that it is in: one thread of torch, and that signals stop it with grace."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from fedasmu.errors import Refused, refusal


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread a process, in this one too, so that the bits do not depend on where a computation runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def started(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread at work. `Refused` where the system gives no more of them."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise Refused(refusal(error)) from None
    return thread


def one_worker(name: str) -> ThreadPoolExecutor:
    """An executor with a single thread, which is there from now on. `Refused` where the system gives no more."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        executor.submit(int)
    except RuntimeError as error:
        raise Refused(refusal(error)) from None
    return executor


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
