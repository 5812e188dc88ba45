"""The cache of decoded data: plain .npy files that are mapped into memory, so that a second start is immediate and the
processes of this machine share one copy."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedasmu.data.places import cache_directory
from fedasmu.data.reading import Array, Arrays, Reading

_FORMATS = {"uci-har": 2, "imdb": 2}  # a new number when a reader changes what it gives; 1 unless said
_SPARE = 1 << 26  # bytes of disk to leave free
_log = logging.getLogger(__name__)


def cached(read: Callable[[Reading], Arrays], reading: Reading) -> Arrays:
    """What `read` gives: from the cache when it is there, else decoded into it."""
    try:
        folder = cache_directory() / "decoded" / f"{reading.description.name}-{key(reading)}"
        if (arrays := _stored(folder, reading)) is not None:  # whole, if it is there: also where nothing can be written
            return arrays
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            arrays = _stored(folder, reading)
            if arrays is None:
                _store(read, reading, folder)
                arrays = _stored(folder, reading)
    except OSError as error:
        _log.warning(
            "%s is decoded in memory, and will be again: the cache cannot be used (%s)", reading.description.name, error
        )
        arrays = None
    return read(reading) if arrays is None else arrays


def key(reading: Reading) -> str:
    """Changes when the source files do (by size and time), or what is asked for, or the format of the cache."""
    description = reading.description
    options = {**asdict(reading.text), "glove": None} if description.text else {}
    digest = hashlib.sha256(
        json.dumps(
            [_FORMATS.get(description.name, 1), description.name, description.train, description.test, options]
        ).encode()
    )
    for found in reading.found:
        for name in found.layout.files:
            for file, status in _files(found.file(name).resolve()):  # however the path was written
                digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """A file, or all files below a folder in the order of their names."""
    if not path.is_dir():
        yield str(path), path.stat()
        return
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield entry.path, entry.stat()


def _store(read: Callable[[Reading], Arrays], reading: Reading, folder: Path) -> None:
    partial = folder.with_name(f".partial-{folder.name}")  # ours alone while we hold the lock
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        arrays = read(replace(reading, new_array=lambda *wanted: _new_array(partial, *wanted)))
        for field in fields(Arrays):
            _write(partial, field.name, getattr(arrays, field.name))
        del arrays  # close the mapped files before they move
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _new_array(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(folder).free
    if free < size + _SPARE:  # a full disk would kill the process when a mapped page is written
        raise OSError(f"{folder.parent} has {free >> 20} MiB free, and {size >> 20} MiB are needed")
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def _write(folder: Path, name: str, value: Array | tuple[str, ...] | None) -> None:
    if isinstance(value, np.memmap):
        value.flush()
    elif isinstance(value, np.ndarray):
        np.save(folder / f"{name}.npy", value, allow_pickle=False)
    elif value:
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def _stored(folder: Path, reading: Reading) -> Arrays | None:
    """The arrays, mapped so that a write stays in this process. None when they are not there, or damaged."""
    needed = {"users.npy": reading.description.natural_users, "words.json": reading.description.text}
    if not folder.is_dir() or not all((folder / name).is_file() for name, has in needed.items() if has):
        return None
    try:
        values: dict[str, Any] = {
            file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in folder.glob("*.npy")
        }
        words = folder / "words.json"
        values["words"] = tuple(json.loads(words.read_text(encoding="utf-8"))) if words.exists() else ()
        return Arrays(**values)
    except (ValueError, EOFError, TypeError):
        return None
