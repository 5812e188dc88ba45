"""Messages between our own processes: pickled, but for the tensors that lie elsewhere; their place is sent."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from torch import Tensor


def pack(message: Any, place: Callable[[Tensor], Any], pickler: Any = pickle.Pickler) -> bytes:
    """`place` says where the other side finds a tensor, or None if it goes into the message."""

    class Pickler(pickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> Any:
            return place(item) if type(item) is Tensor else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def unpack(message: bytes, find: Callable[[Any], Tensor]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Tensor:
            return find(place)

    return Unpickler(io.BytesIO(message)).load()
