"""A shelf for tensors on disk: for methods that keep a whole vector for every device.

Memory then holds what is in flight, not the fleet. What a checkpoint refers to is never overwritten: a new tensor then
gets a new file, and an old file is swept away once no kept checkpoint needs it. For a checkpoint a file's name is given
the digest of its content, so that the checkpoint, which has the names, vouches for the files too. Until then a quick
sum tells whether it is what was written: most files are written over before any checkpoint needs them.

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
from numpy.typing import NDArray
from torch import Tensor

from fedasmu.errors import Refused
from fedasmu.storage.checkpoint import KEPT
from fedasmu.system.disk import not_through_links, sync, sync_all

NEW = "new"  # in the place of the digest, until a checkpoint needs it
NAME = re.compile(r"\d{1,18}\.[\dx]{0,80}\.[a-z]{3,8}\d{0,3}\.([0-9a-f]{32}|new)")  # number, shape, type, digest
SMALL = 128  # bytes of a tensor that stays in memory
CHANGED = "not what was written there"
Bytes = NDArray[np.uint8]


class Shelf:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._small: dict[str, Tensor] = {}  # key -> a tensor that has no file
        self._files: dict[str, str] = {}  # key -> file name
        self._written = 0
        self._sums: dict[str, int] = {}  # of files that this process has written or read, by their names
        self._kept: deque[set[str]] = deque(maxlen=KEPT)  # the files that each checkpoint on the disk refers to
        self._asked: set[str] = set()  # those of the one that is being written, and may never get there

    def __contains__(self, key: object) -> bool:
        return str(key) in self._files or str(key) in self._small

    def __len__(self) -> int:
        return len(self._files) + len(self._small)

    def put(self, key: object, tensor: Tensor) -> None:
        """From now on it is the shelf's: whoever puts it does not write to it any more."""
        tensor = tensor.detach() if tensor.requires_grad else tensor
        if tensor.nbytes <= SMALL:
            self._small[str(key)] = _compact(tensor)
            self._remove(self._files.pop(str(key), None))
            return
        self._small.pop(str(key), None)
        data = tensor.contiguous().numpy().reshape(-1).view(np.uint8)
        shape, kind = "x".join(map(str, tensor.shape)), str(tensor.dtype).removeprefix("torch.")
        name, before = f"{self._written}.{shape}.{kind}.{NEW}", self._files.get(str(key))
        if before is not None and before.partition(".")[2] == name.partition(".")[2]:
            name = before  # no checkpoint has seen it: writing over it is half the work of a new file
        else:
            self._written += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / name, "r+b" if name == before else "wb", opener=not_through_links) as file:
            file.write(data.data)
        self._sums[name] = _sum(data)
        self._files[str(key)] = name
        if name != before:
            self._remove(before)

    def drop(self, key: object) -> None:
        """It is not wanted any more; nothing happens where nothing was put."""
        self._small.pop(str(key), None)
        self._remove(self._files.pop(str(key), None))

    def get(self, key: object) -> Tensor | None:
        """To be read, not to be written to; None where nothing was put."""
        if (small := self._small.get(str(key))) is not None:
            return small
        name = self._files.get(str(key))
        if name is None:
            return None
        data = self._read(name)
        _, shape, dtype, _ = name.split(".")
        return torch.from_numpy(data.view(np.dtype(dtype))).view([int(length) for length in shape.split("x") if length])

    def _read(self, name: str) -> Bytes:
        data, found = np.fromfile(self.directory / name, dtype=np.uint8), True
        if name in self._sums:
            found = self._sums[name] == _sum(data)
        elif found := not _problem(name, data.data):
            self._sums[name] = _sum(data)
        if not found:
            path = self.directory / name
            raise Refused(f"{path}: {CHANGED}; the last checkpoint may still be whole: resume the run")
        return data

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs: names only. When that is on the disk, `kept` is to be called."""
        new = [key for key, name in self._files.items() if name.endswith(NEW)]
        for key in new:
            self._files[key] = self._sealed(self._files[key])
        sync_all(self.directory, [self._files[key] for key in new])
        names = set(self._files.values())
        if names and names != self._asked:  # it may be asked for twice in one checkpoint
            sync(self.directory)
        never, self._asked = self._asked, names
        self._sweep(never)
        files = {"shelf": self.directory.name, "files": dict(self._files), "written": self._written}
        return files | {"small": _joined(self._small)}

    def kept(self) -> None:
        """The checkpoint that asked last is on the disk: what only the one that it has replaced needs is removed."""
        replaced = self._kept[0] if len(self._kept) == KEPT else set[str]()
        self._kept.append(self._asked)
        self._sweep(replaced)

    def restore(self, state: dict[str, Any]) -> None:
        for name in state["files"].values():
            _check_name(name)
        self._files, self._written = dict(state["files"]), int(state["written"])
        self._small = _parted(state["small"])
        # Another checkpoint may be there, and files of none: with the next one they go.
        there = {path.name for path in self.directory.glob("*") if NAME.fullmatch(path.name)}
        self._kept.extend([there, set(self._files.values())])

    def _sealed(self, name: str) -> str:
        """The file's name with the digest of what is in it."""
        sealed = name.removesuffix(NEW) + _digest(self._read(name).data)
        (self.directory / name).rename(self.directory / sealed)
        self._sums[sealed] = self._sums.pop(name)
        return sealed

    def _remove(self, name: str | None) -> None:
        """A file that is replaced goes at once, unless a checkpoint needs it."""
        if name is not None and not any(name in needed for needed in (self._asked, *self._kept)):
            (self.directory / name).unlink()
            self._sums.pop(name, None)

    def _sweep(self, names: set[str]) -> None:
        """Of these files, those that nobody needs any more."""
        for name in names.difference(self._files.values(), self._asked, *self._kept):
            (self.directory / name).unlink(missing_ok=True)
            self._sums.pop(name, None)


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
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith(NEW):
        raise ValueError(f"{name!r} is not the name of a file on a shelf")


def _digest(data: bytes | memoryview) -> str:
    return sha256(data).hexdigest()[:32]


def _problem(name: str, data: bytes | memoryview) -> str:
    return "" if _digest(data) == name.rpartition(".")[2] else CHANGED


def _sum(data: Bytes) -> int:
    """Of its 64-bit words and what is left, and its length: at the speed of memory, against accidents."""
    whole = len(data) // 8 * 8
    return int(data[:whole].view(np.uint64).sum()) + int(data[whole:].sum()) + len(data)
