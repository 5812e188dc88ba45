"""A shelf for tensors on disk: for methods that keep a whole vector for every device.

Memory then holds what is in flight, not the fleet. What a checkpoint refers to is never overwritten: a new tensor gets
a new file, and an old file is swept away once no kept checkpoint needs it. A file's name has the digest of its content,
so that a checkpoint, which has the names, vouches for the files too.

A tensor that is hardly larger than such a name stays in memory, and is written with the checkpoint, all of them in one
piece: a file of its own would cost more than the rest of an upload.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedasmu.checkpoint import KEPT
from fedasmu.disk import not_through_links, sync
from fedasmu.errors import Refused

NAME = re.compile(r"\d{1,18}\.[\dx]{0,80}\.[a-z]{3,8}\d{0,3}\.[0-9a-f]{32}")  # number, shape, type, digest


SMALL = 128  # bytes of a tensor that stays in memory


class Shelf:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._small: dict[str, Tensor] = {}  # key -> a tensor that has no file
        self._files: dict[str, str] = {}  # key -> file name
        self._written = 0
        self._unsynced: set[str] = set()  # names that may not be on the disk yet
        # The files that each kept checkpoint refers to, and the one being written: a kill may keep it from the disk.
        self._kept: deque[set[str]] = deque(maxlen=KEPT + 1)

    def __contains__(self, key: object) -> bool:
        return str(key) in self._files or str(key) in self._small

    def __len__(self) -> int:
        return len(self._files) + len(self._small)

    def put(self, key: object, tensor: Tensor) -> None:
        """From now on it is the shelf's: whoever puts it does not write to it any more."""
        if tensor.nbytes <= SMALL:
            self._small[str(key)] = _compact(tensor.detach())
            self._drop(self._files.pop(str(key), None))
            return
        self._small.pop(str(key), None)
        data, kind = tensor.detach().contiguous().numpy().tobytes(), str(tensor.dtype).removeprefix("torch.")
        name = f"{self._written}.{'x'.join(map(str, tensor.shape))}.{kind}.{_digest(data)}"
        self._written += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / name, "wb", opener=not_through_links) as file:
            file.write(data)
        self._unsynced.add(name)
        before = self._files.get(str(key))
        self._files[str(key)] = name
        self._drop(before)

    def get(self, key: object) -> Tensor | None:
        """To be read, not to be written to; None where nothing was put."""
        if (small := self._small.get(str(key))) is not None:
            return small
        name = self._files.get(str(key))
        if name is None:
            return None
        data = (self.directory / name).read_bytes()
        if problem := _problem(name, data):
            raise Refused(f"{self.directory / name}: {problem}; the last checkpoint may still be whole: resume the run")
        _, shape, dtype, _ = name.split(".")
        array = np.frombuffer(bytearray(data), dtype=np.dtype(dtype))
        return torch.from_numpy(array).view([int(length) for length in shape.split("x") if length])

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs: names only. Taking it also removes the files that no kept checkpoint refers to."""
        dropped = self._kept[0] if len(self._kept) == self._kept.maxlen else set()
        self._kept.append(set(self._files.values()))
        for name in self._unsynced & self._kept[-1]:
            sync(self.directory / name)
        self._unsynced.clear()
        for name in dropped - set().union(*self._kept):
            (self.directory / name).unlink(missing_ok=True)
        files = {"shelf": self.directory.name, "files": dict(self._files), "written": self._written}
        return files | {"small": _joined(self._small)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in state["files"].values():
            _check_name(name)
        self._files, self._written = dict(state["files"]), int(state["written"])
        self._small = _parted(state.get("small", []))
        self._kept.append(set(self._files.values()))

    def _drop(self, name: str | None) -> None:
        """A file that is replaced goes at once, unless a checkpoint needs it."""
        if name is not None and not any(name in kept for kept in self._kept):
            (self.directory / name).unlink()


def _compact(tensor: Tensor) -> Tensor:
    """A small tensor must not keep a large one alive."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > SMALL else tensor


def _joined(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Many small tensors as a few large ones: those of one type and shape are stacked."""
    alike: dict[tuple[torch.dtype, torch.Size], list[str]] = {}
    for key, tensor in tensors.items():
        alike.setdefault((tensor.dtype, tensor.shape), []).append(key)
    return [{"keys": keys, "tensors": torch.stack([tensors[key] for key in keys])} for keys in alike.values()]


def _parted(joined: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = (zip(group["keys"], group["tensors"].unbind(), strict=True) for group in joined)
    return {key: row.clone() for pairs in rows for key, row in pairs}


def check_shelves(tree: Any, directory: Path) -> None:
    """A ValueError if a file that a checkpoint refers to is missing, or not what it was."""
    for shelf, name in _named(tree):
        _check_name(name)
        if shelf not in ("server", "devices"):
            raise ValueError(f"{shelf!r} is no shelf")
        path = directory / shelf / name
        if problem := _problem(name, path.read_bytes()):
            raise ValueError(f"{path}: {problem}")


def _named(tree: Any) -> Iterator[tuple[Any, Any]]:
    """The shelves and the names in a checkpoint, wherever a method keeps them."""
    if isinstance(tree, dict):
        if "shelf" in tree and isinstance(tree.get("files"), dict):
            yield from ((tree["shelf"], name) for name in tree["files"].values())
        else:
            for value in tree.values():
                yield from _named(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _named(value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a file on a shelf")


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def _problem(name: str, data: bytes) -> str:
    return "" if _digest(data) == name.rpartition(".")[2] else "not what was written there"
