"""Messages between our own processes: pickled, but for the tensors that lie elsewhere; their place is sent."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

SMALL = 1 << 12  # bytes: what is not larger travels in the message itself


def lies_apart(tensor: Tensor) -> bool:
    """Whether a tensor is worth a place of its own, beside the message."""
    return tensor.nbytes > SMALL and tensor.device.type == "cpu"


def pack(message: Any, place: Callable[[Tensor], Any], pickler: Any = pickle.Pickler) -> bytes:
    """`place` says where the other side finds a tensor, or None if it goes into the message."""
    buffer = io.BytesIO()
    writer = _placing(pickler)(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    writer.place = place
    writer.dump(message)
    return buffer.getvalue()


def unpack(message: bytes, find: Callable[[Any], Tensor]) -> Any:
    reader = _Finding(io.BytesIO(message))
    reader.find = find
    return reader.load()


@cache
def _placing(pickler: Any) -> Any:
    """Such a pickler that has tensors placed. Making a class takes longer than writing a message with it."""

    class Placing(pickler):  # type: ignore[misc]
        place: Callable[[Tensor], Any]

        def persistent_id(self, item: Any) -> Any:
            return self.place(item) if type(item) is Tensor else None

    return Placing


class _Finding(pickle.Unpickler):
    find: Callable[[Any], Tensor]

    def persistent_load(self, place: Any) -> Tensor:
        return self.find(place)
