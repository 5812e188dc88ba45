"""What runs on the nodes of a cluster: one worker. The driver needs no more of it than its name."""

from __future__ import annotations

import platform
import time
import traceback
import warnings
from typing import Any

import torch
from torch import Tensor

import fedasmu
from fedasmu.pools.lane import lies_apart, pack, unpack


class Actor:
    def __init__(self, parcel: tuple[bytes, list[Any]]) -> None:
        """`parcel`: `perform`, packed, and its tensors. They stay where they lie in the node's memory."""
        torch.set_num_threads(1)
        message, arrays = parcel
        self._perform = unpack(message, lambda place: tensor_of(arrays[place]))

    def hello(self) -> tuple[str, dict[str, str]]:
        return platform.node(), about()

    def perform(self, message: bytes, *arrays: Any) -> tuple[tuple[bytes | str, float], Any]:
        """The packed answer, or how it failed; what it took; and the answer's vector if it has one."""
        began = time.thread_time()
        vectors: list[Any] = []
        try:
            command, device, seed = unpack(message, lambda place: tensor_of(arrays[place]))
            reply: bytes | str = pack(self._perform(command, device, seed), Parcel(vectors, limit=1))
        except BaseException:  # a model may also raise SystemExit
            reply = traceback.format_exc()
        return (reply, time.thread_time() - began), vectors[0] if vectors else None


class Parcel:
    """Collects the tensors that do not go into a message itself."""

    def __init__(self, arrays: list[Any], limit: int = 1 << 30) -> None:
        self.arrays, self.limit = arrays, limit

    def __call__(self, tensor: Tensor) -> int | None:
        if not lies_apart(tensor) or len(self.arrays) == self.limit:
            return None
        self.arrays.append(tensor.detach().numpy())
        return len(self.arrays) - 1


def tensor_of(array: Any) -> Tensor:
    """A tensor over an array of the object store, which cannot be written to: nobody here does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def about() -> dict[str, str]:
    """What must be the same on all nodes for the same bits."""
    machine = f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"
    return {"fedasmu": fedasmu.__version__, "torch": torch.__version__, "processor": machine}
