"""Arrays of an npz file that somebody gave us. Nothing in it is executed."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.errors import UserError, reading

PAIR = ("inputs", "targets")


def read(path: str | Path, called: str, optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Its inputs and targets, and which there are of the optional arrays. `called` is the file in messages."""
    with reading(called), Path(path).open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{called}: no npz file, or one that is cut off; numpy.savez writes them")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                check_pair(arrays.files, called)
                return {name: _array(arrays, name, called) for name in (*PAIR, *optional) if name in arrays.files}
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise UserError(f"{called}: damaged: {error}") from None


def check_pair(names: Collection[str], called: str) -> None:
    if not {*PAIR} <= {*names}:
        raise UserError(f"{called}: must hold arrays named inputs and targets; it has {', '.join(names) or 'none'}")


def _array(arrays: Any, name: str, called: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        kinds = "numbers" if "targets" in name else "numbers, or texts (dtype str)"
        raise UserError(f"{called}: {name} holds Python objects; save {kinds}") from None
    return found
