"""What the simulated devices remember between tasks: small values in memory, tensors on a shelf."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedasmu.protocol import Memory
from fedasmu.storage.shelf import Shelf

PLAIN = (float, int, str, bool)  # what cannot be written into


class Memories:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._values: dict[int, Memory] = {}
        self._tensors: dict[int, list[str]] = {}

    def get(self, device: int) -> Memory:
        """A copy that a session may change: it counts only once it is put back."""
        memory: Memory = _copy(self._values.get(device, {}))
        for name in self._tensors.get(device, []):
            memory[name] = _copy(self._shelf.get(f"{device}/{name}"))
        return memory

    def put(self, device: int, memory: Memory) -> None:
        tensors = [name for name, value in memory.items() if isinstance(value, Tensor)]
        for name in tensors:
            self._shelf.put(f"{device}/{name}", memory[name])
        values = {name: value for name, value in memory.items() if name not in tensors}
        self._tensors.pop(device, None)
        self._values.pop(device, None)
        if tensors:  # a device that remembers nothing takes no room
            self._tensors[device] = tensors
        if values:
            self._values[device] = values

    def state(self) -> dict[str, Any]:
        return {
            "values": dict(self._values),
            "tensors": dict(self._tensors),
            "shelf": self._shelf.state(),
        }

    def kept(self) -> None:
        """The checkpoint that `state` was for is on the disk."""
        self._shelf.kept()

    def restore(self, state: dict[str, Any]) -> None:
        self._values, self._tensors = dict(state["values"]), dict(state["tensors"])
        self._shelf.restore(state["shelf"])


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: value if type(value) in PLAIN else _copy(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [value if type(value) in PLAIN else _copy(value) for value in tree]
    return tree.clone() if isinstance(tree, Tensor) else tree
