"""Messages between our own processes: pickled, with their tensors beside them in shared memory."""

from __future__ import annotations

import io
import pickle
from typing import Any

from torch import Tensor


def pack(message: Any, lane: Tensor) -> bytes:
    """Tensors go to the shared lane while there is room; their place is sent."""
    used = 0

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            nonlocal used
            if not isinstance(item, Tensor) or used + item.nbytes > len(lane) or not item.nbytes:
                return None
            start, used = used, used + -(-item.nbytes // 64) * 64
            lane[start : start + item.nbytes].view(item.dtype).view(item.shape).copy_(item)
            return start, item.nbytes, item.dtype, item.shape

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def unpack(message: bytes, lane: Tensor) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Tensor:
            start, size, dtype, shape = place
            return lane[start : start + size].view(dtype).view(shape).clone()

    return Unpickler(io.BytesIO(message)).load()
