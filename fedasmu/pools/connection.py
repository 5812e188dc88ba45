"""Finding a Ray cluster, and whether its nodes are as they must be."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedasmu.errors import UserError

SECONDS = 5.0  # to wait for a cluster to answer


def is_address(workers: object) -> bool:
    """Whether this asks for a Ray cluster: ray, ray://host:port, or host:port."""
    return isinstance(workers, str) and (workers == "ray" or ":" in workers)


def connect(address: str) -> tuple[Any, bool]:
    """Ray, connected to the cluster there, and whether it was this call that did so.

    `ray`: the cluster of RAY_ADDRESS, the one that runs on this machine, or else one that is started here.
    """
    check(address)
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it would warn about its own future
    try:
        with _our_signals():
            ray.init(address=None if address == "ray" else address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError, AssertionError) as error:
        raise UserError(f"workers = {address!r}: {refusal(error)}") from None
    return ray, True


def refusal(error: Exception) -> str:
    """Why a cluster cannot be used, in one sentence."""
    if "Starting Ray client server failed" in str(error):  # grpc's handlers end what is forked from the head's proxy
        return (
            "the head cannot serve a client from outside; start it with: GRPC_ENABLE_FORK_SUPPORT=0 ray start --head, "
            "or run on the head itself with --workers ray"
        )
    return reason(error)


def check(address: str) -> None:
    """Whether there is a cluster to connect to. Ray itself would try for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"workers = {address!r}: Ray is not installed; pip install 'fedasmu[ray]'")
    if address == "ray":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"workers = {address!r}: must be ray, ray://host:port or host:port")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except OSError as error:
        raise UserError(
            f"workers = {address!r}: no cluster answers there ({error}); start one with: ray start --head"
        ) from None


@contextmanager
def _our_signals() -> Iterator[None]:
    """Ray would end the process on SIGTERM; the run decides what it means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def here(ray: Any) -> Any:
    """Where something is placed that must not die with another node."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return affinity(node_id=ray.get_runtime_context().get_node_id(), soft=True)


def share(workers: int) -> float:
    """Of a GPU, for so many on one. Ray counts in ten-thousandths: a share rounded up would not fit so often."""
    return 10_000 // workers / 10_000


def processors(ray: Any, gpus: float) -> int:
    """How many workers there is room for: each needs a processor, and its GPU on the same node."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count = sum(room(int(node.get("CPU", 0)), int(node.get("GPU", 0)), gpus) for node in there)
    if count < 1:
        found = [f"{sum(node.get(kind, 0) for node in there):g} {kind}" for kind in ("CPU", "GPU")]
        raise UserError(f"the cluster has no room for a worker: {', '.join(found)}")
    return count


def room(cpu: int, gpu: int, share: float) -> int:
    """How many workers a node takes that need this share of a GPU each."""
    return min(cpu, gpu * int(1 / share)) if share else cpu


def send_own_modules(ray: Any) -> None:
    """Code of the user's own travels with the objects that need it; what is installed must be on the nodes."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        ours = name.partition(".")[0] in ("fedasmu", "__main__", "__mp_main__")
        if file and not ours and not _installed(Path(file)):
            ray.cloudpickle.register_pickle_by_value(module)


def _installed(file: Path) -> bool:
    standard = file.is_relative_to(sysconfig.get_path("stdlib"))
    return standard or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def compare(node: str, there: dict[str, str], here: dict[str, str], say: Callable[[str], None]) -> None:
    """Other versions are refused. Another processor may round differently, and the user should know."""
    for name in ("fedasmu", "torch"):
        if there[name] != here[name]:
            raise UserError(f"node {node} of the cluster has {name} {there[name]}, this machine {here[name]}")
    if there["processor"] != here["processor"]:
        say(
            f"node {node} is {there['processor']}, this machine {here['processor']}: they may round differently, "
            "and another run may not give the same bits"
        )


def reason(error: Exception) -> str:
    """Why a node could not start a worker, in one line."""
    text = str(error).strip()
    if "No module named 'fedasmu" in text:
        return "fedasmu is not installed there"
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
