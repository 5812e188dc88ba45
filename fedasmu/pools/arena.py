"""Shared memory for vectors: one process writes a vector once, and all others read it where it lies.

The memory is cut into slots of one model's size. A slot is free again when nobody holds a tensor over it any more, and
is then used for the next vector: memory that has been touched before costs a fifth of a fresh one.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from fedasmu.pools.lane import lies_apart


class Place(NamedTuple):
    """Where a tensor lies."""

    slot: int
    offset: int  # in bytes
    dtype: torch.dtype
    shape: torch.Size


class Arena:
    """One process decides about the slots: it makes the arena. The processes that it forks read, and fill what they
    are told to.
    """

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = -(-slot_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._file = _unnamed_file()
        self._maps: dict[int, mmap.mmap] = {}
        self._slots = 0
        self._free: list[int] = []
        self._held: dict[int, int] = {}  # address of a tensor's storage -> the slot that it is
        self._copies: dict[int, tuple[int, int]] = {}  # id of a tensor -> its version and the slot of its copy

    def take(self) -> int:
        """A slot to fill, to be given back by `release` or turned into a tensor by `adopt`."""
        if self._free:
            return self._free.pop()
        self._slots += 1
        os.ftruncate(self._file, self._slots * self.slot_bytes)
        return self._slots - 1

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def adopt(self, place: Place) -> Tensor:
        """What was written there, as a tensor. The slot is free when its memory is held by no tensor any more."""
        memory = memoryview(self._map(place.slot))
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        address = tensor.untyped_storage().data_ptr()
        self._held[address] = place.slot
        weakref.finalize(memory, self._dropped, address).atexit = False
        return _tensor(tensor, place)

    def place(self, tensor: Tensor) -> Place | None:
        """Where this tensor lies. It is copied to a slot, unless it is in one already; None if it does not belong."""
        if not self.takes(tensor):
            return None
        slot = self._held.get(tensor.untyped_storage().data_ptr())
        if slot is not None and tensor.is_contiguous():
            offset = int(tensor.storage_offset()) * tensor.element_size()
            return Place(slot, offset, tensor.dtype, tensor.shape)
        return self._copy(tensor)

    def takes(self, tensor: Tensor) -> bool:
        return lies_apart(tensor) and tensor.nbytes <= self.slot_bytes

    def view(self, place: Place) -> Tensor:
        """To read in another process, while the one that placed it holds it."""
        return _tensor(torch.frombuffer(self._map(place.slot), dtype=torch.uint8), place)

    def write(self, tensor: Tensor, slot: int) -> Place:
        place = Place(slot, 0, tensor.dtype, tensor.shape)
        self.view(place).copy_(tensor)
        return place

    def _copy(self, tensor: Tensor) -> Place | None:
        """A version of the global model goes to many devices, and is copied once. One that was written to since is not
        copied again: somebody may be reading its slot.
        """
        key = id(tensor)
        if key not in self._copies:
            self._copies[key] = tensor._version, self.take()
            weakref.finalize(tensor, self._forget, key).atexit = False
            return self.write(tensor, self._copies[key][1])
        version, slot = self._copies[key]
        return Place(slot, 0, tensor.dtype, tensor.shape) if version == tensor._version else None

    def _forget(self, key: int) -> None:
        self.release(self._copies.pop(key)[1])

    def _dropped(self, address: int) -> None:
        self.release(self._held.pop(address))

    def _map(self, slot: int) -> mmap.mmap:
        if slot not in self._maps:
            self._maps[slot] = mmap.mmap(self._file, self.slot_bytes, offset=slot * self.slot_bytes)
        return self._maps[slot]


def _tensor(memory: Tensor, place: Place) -> Tensor:
    size = place.shape.numel() * place.dtype.itemsize
    return memory[place.offset : place.offset + size].view(place.dtype).view(place.shape)


def _unnamed_file() -> int:
    """In memory, and gone with the processes that have it open, however they end."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedasmu")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
