"""How the processes of a study come to be. Needs no torch, so that a command can call it before all else."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing import forkserver


def start_method() -> str:
    """A server that has imported everything once and forks; where there is none, fresh processes.

    The sooner it is called, the sooner the server is ready: it imports while the caller goes on.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.set_forkserver_preload(["fedasmu.study.grid"])
    if threading.current_thread() is not threading.main_thread():
        return "forkserver"
    # What is ignored when a program starts stays ignored: Ctrl-C while the server imports is this process's to answer.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
    return "forkserver"
