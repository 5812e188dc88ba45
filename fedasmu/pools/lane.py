"""Messages between our own processes: pickled, but for the tensors that lie in shared memory; their place is sent."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedasmu.pools.arena import Place


def pack(message: Any, place: Callable[[Tensor], Place | None]) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            return place(item) if isinstance(item, Tensor) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def unpack(message: bytes, find: Callable[[Place], Tensor]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Tensor:
            return find(place)

    return Unpickler(io.BytesIO(message)).load()
