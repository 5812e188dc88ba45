"""Checkpoints: a tree of plain values and tensors, written so that a kill at any moment leaves a readable one.

Each is a directory with the tree as JSON, the tensors as safetensors and a digest of both. It is written under a
temporary name and then renamed; the one before it is kept in case the newest is damaged. Nothing is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedasmu.encoding.codec import WORDS, Words, pack, unpack
from fedasmu.errors import UserError
from fedasmu.system.disk import sync

KEPT = 2
PART = ".part"  # of a name: it is being written, or removed
TYPES = {  # as safetensors calls them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # of a file: others, as EMFILE, may pass
FORMAT = 5  # of the tree and its files: one of another format is refused, not guessed at


@dataclass(frozen=True, slots=True)
class Frozen:
    """A tree as it was at one moment, ready to be written while its owner goes on."""

    text: bytes
    tensors: dict[str, Tensor]

    @property
    def size(self) -> int:
        return len(self.text) + sum(tensor.nbytes for tensor in self.tensors.values())


def frozen(tree: Any, lasting: Iterable[Tensor] = (), words: Words = WORDS) -> Frozen:
    """Tensors are copied, except those that nobody writes to any more, as the caller knows."""
    text, tensors = _packed(tree, words)
    kept = {id(tensor) for tensor in lasting}
    return Frozen(text, {name: one if id(one) in kept else one.clone() for name, one in tensors.items()})


def write(tree: Any, directory: Path, words: Words = WORDS) -> None:
    """Write the tree into a new directory: it appears complete, or not at all."""
    _put(Frozen(*_packed(tree, words)), directory)


def _packed(tree: Any, words: Words = WORDS) -> tuple[bytes, dict[str, Tensor]]:
    return pack({"format": FORMAT, "tree": tree}, words)


def _put(state: Frozen, directory: Path) -> None:
    temporary = directory.with_name(directory.name + PART)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        digest = sha256()
        for name, parts in (("state.json", [state.text]), ("tensors.safetensors", _laid_out(state.tensors))):
            _write_synced(temporary / name, parts, digest.update)
        _write_synced(temporary / "sha256", [digest.hexdigest().encode()])
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # others may have use for what room it has found
        raise
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync(directory)
    sync(directory.parent)


def read(directory: Path, words: Words = WORDS) -> Any:
    """The tree again. Whatever is damaged is a ValueError; one of another format is refused. An OSError may pass."""
    try:
        text = (directory / "state.json").read_bytes()
        data = (directory / "tensors.safetensors").read_bytes()
        if _digest(text, data) != (directory / "sha256").read_bytes():
            raise ValueError("the digest does not match")
        state = unpack(text, safetensors.torch.load(data), words)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        if _may_pass(error):
            raise
        raise ValueError(f"{directory}: {error}") from None
    found = state.get("format", 1) if isinstance(state, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{directory}: written by another version of fedasmu (format {found}; this one reads {FORMAT}); "
            "go on with that version, or start again"
        )
    return state.get("tree")


def save(tree: Any, directory: Path) -> None:
    """Add a checkpoint to a directory of them, and remove all but the last few."""
    add(Frozen(*_packed(tree)), directory)


def add(state: Frozen, directory: Path) -> None:
    """The same with a tree that was frozen before. Any thread may do this, and holds up the others but for moments."""
    number = max((int(path.name) for path in _numbered(directory)), default=0) + 1
    _put(state, directory / f"{number:09d}")
    for old in _numbered(directory)[:-KEPT]:
        shutil.rmtree(old)


def remove(directory: Path) -> None:
    """All of them. A kill at any moment leaves them as they were, or nothing that anybody would read."""
    gone = directory.with_name(directory.name + PART)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        directory.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)


def load(directory: Path, say: Callable[[str], None], check: Callable[[Any], None] = lambda tree: None) -> Any | None:
    """The newest readable checkpoint, or None if there is none at all. Says which ones it had to pass over.

    Those are then removed, so that they do not take the place of good ones. `check` raises a ValueError or an OSError
    if what the checkpoint refers to is damaged. What only cannot be read today is neither: that is an OSError. What a
    kill has left unfinished is removed, too.
    """
    for left in directory.glob(f"*{PART}"):
        shutil.rmtree(left, ignore_errors=True)
    damaged: list[Path] = []
    for path in reversed(_numbered(directory)):
        try:
            tree = read(path)
            check(tree)
        except (ValueError, OSError) as error:
            if _may_pass(error):
                raise
            say(f"damaged checkpoint, falling back to the one before it: {error}")
            damaged.append(path)
            continue
        for passed in damaged:
            shutil.rmtree(passed)
        return tree
    if damaged:
        raise UserError(f"{directory}: no checkpoint can be read; start the run again (overwrite)")
    return None


def _may_pass(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno not in DAMAGE


def _digest(text: bytes, data: bytes) -> bytes:
    """Of both, one after the other, without a copy of them: a server in flight with many devices has large ones."""
    digest = sha256(text)
    digest.update(data)
    return digest.hexdigest().encode()


def _numbered(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*") if path.name.isdecimal())


def _laid_out(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A file of safetensors, piece by piece: its own writer has the whole in memory twice, and other threads wait."""
    table: dict[str, Any] = {}
    place = 0
    for name, tensor in tensors.items():
        ends = [place, place := place + tensor.nbytes]
        table[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": ends}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write_synced(
    path: Path, parts: Iterable[bytes | memoryview], seen: Callable[[bytes | memoryview], None] = lambda part: None
) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            seen(part)
        file.flush()
        os.fsync(file.fileno())
