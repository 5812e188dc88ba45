"""A shelf for tensors on disk: for methods that keep a whole vector for every device.

Memory then holds what is in flight, not the fleet. What a checkpoint refers to is never overwritten: a new tensor gets
a new file, and an old file is swept away once no kept checkpoint needs it.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedasmu.checkpoint import KEPT


class Shelf:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, str] = {}  # key -> file name
        self._written = 0
        # The files that each kept checkpoint refers to, and the one being written: a kill may keep it from the disk.
        self._kept: deque[set[str]] = deque(maxlen=KEPT + 1)

    def __contains__(self, key: object) -> bool:
        return str(key) in self._files

    def __len__(self) -> int:
        return len(self._files)

    def put(self, key: object, tensor: Tensor) -> None:
        name = f"{self._written}.{'x'.join(map(str, tensor.shape))}.{str(tensor.dtype).removeprefix('torch.')}"
        self._written += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        tensor.detach().contiguous().numpy().tofile(self.directory / name)
        before = self._files.get(str(key))
        self._files[str(key)] = name
        if before is not None and not any(before in kept for kept in self._kept):
            (self.directory / before).unlink()

    def get(self, key: object) -> Tensor | None:
        name = self._files.get(str(key))
        if name is None:
            return None
        _, shape, dtype = name.split(".")
        array = np.fromfile(self.directory / name, dtype=np.dtype(dtype))
        return torch.from_numpy(array).view([int(length) for length in shape.split("x") if length])

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs: names only. Taking it also removes the files that no kept checkpoint refers to."""
        dropped = self._kept[0] if len(self._kept) == self._kept.maxlen else set()
        self._kept.append(set(self._files.values()))
        for name in dropped - set().union(*self._kept):
            (self.directory / name).unlink(missing_ok=True)
        return {"files": dict(self._files), "written": self._written}

    def restore(self, state: dict[str, Any]) -> None:
        self._files, self._written = dict(state["files"]), state["written"]
        self._kept.append(set(self._files.values()))
