"""Checkpoints: a tree of plain values and tensors, written so that a kill at any moment leaves a readable one.

Each is a directory with the tree as JSON, the tensors as safetensors and a digest of both. It is written under a
temporary name and then renamed; the one before it is kept in case the newest is damaged. Nothing is pickled.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedasmu.codec import WORDS, Words, pack, unpack
from fedasmu.disk import sync
from fedasmu.errors import UserError

KEPT = 2
FORMAT = 4  # of the tree and its files: one of another format is refused, not guessed at


def write(tree: Any, directory: Path, words: Words = WORDS) -> None:
    """Write the tree into a new directory: it appears complete, or not at all."""
    text, tensors = pack({"format": FORMAT, "tree": tree}, words)
    data = safetensors.torch.save(_apart(tensors))
    temporary = directory.with_name(directory.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    digest = _digest(text, data)
    for name, content in (("state.json", text), ("tensors.safetensors", data), ("sha256", digest)):
        with (temporary / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync(directory)
    sync(directory.parent)


def read(directory: Path, words: Words = WORDS) -> Any:
    """The tree again. Whatever is damaged is a ValueError; one of another format is refused."""
    try:
        text = (directory / "state.json").read_bytes()
        data = (directory / "tensors.safetensors").read_bytes()
        if _digest(text, data) != (directory / "sha256").read_bytes():
            raise ValueError("the digest does not match")
        state = unpack(text, safetensors.torch.load(data), words)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
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
    number = max((int(path.name) for path in _numbered(directory)), default=0) + 1
    write(tree, directory / f"{number:09d}")
    for old in _numbered(directory)[:-KEPT]:
        shutil.rmtree(old)


def load(directory: Path, say: Callable[[str], None], check: Callable[[Any], None] = lambda tree: None) -> Any | None:
    """The newest readable checkpoint, or None if there is none at all. Says which ones it had to pass over.

    Those are then removed, so that they do not take the place of good ones. `check` raises a ValueError or an OSError
    if what the checkpoint refers to is damaged.
    """
    damaged: list[Path] = []
    for path in reversed(_numbered(directory)):
        try:
            tree = read(path)
            check(tree)
        except (ValueError, OSError) as error:
            say(f"damaged checkpoint, falling back to the one before it: {error}")
            damaged.append(path)
            continue
        for passed in damaged:
            shutil.rmtree(passed)
        return tree
    if damaged:
        raise UserError(f"{directory}: no checkpoint can be read; start the run again (overwrite)")
    return None


def _digest(text: bytes, data: bytes) -> bytes:
    """Of both, one after the other, without a copy of them: a server in flight with many devices has large ones."""
    digest = sha256(text)
    digest.update(data)
    return digest.hexdigest().encode()


def _numbered(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*") if path.name.isdigit())


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses views into a larger storage, and two tensors in one storage."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage()
        shared = storage.nbytes() != tensor.nbytes or storage.data_ptr() in storages
        apart[name] = tensor.clone() if shared else tensor
        storages.add(apart[name].untyped_storage().data_ptr())
    return apart
