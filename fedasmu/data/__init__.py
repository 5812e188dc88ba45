"""Data sets by name, and how they are split over devices.

`load` looks for the files of a data set on this machine, or downloads them when asked, and gives tensors. Importing
this package is cheap: torch and numpy are imported when something is read.
"""

from __future__ import annotations

import gzip
import importlib
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from fedasmu.data.datasets import DATASETS
from fedasmu.data.description import Description, TextOptions, Upstream
from fedasmu.data.errors import DataError
from fedasmu.data.places import Look, Place, find, looks, not_found
from fedasmu.data.progress import Progress
from fedasmu.errors import did_you_mean

if TYPE_CHECKING:
    from fedasmu.data.examples import Dataset
    from fedasmu.data.reading import Arrays, Reading

__all__ = [
    "DATASETS",
    "NAMES",
    "DataError",
    "Description",
    "Look",
    "TextOptions",
    "describe",
    "here",
    "is_here",
    "load",
    "part_of",
    "prepare",
    "verify",
    "where",
]

NAMES = tuple(description.name for description in DATASETS)
_EMBEDDED = {"fashion-mnist": "fashion-mnist-small"}  # what stands in for a data set under `fallback = "embedded"`


class Reader(Protocol):
    """A module that decodes the files of a data set."""

    def read(self, reading: Reading) -> Arrays: ...


def describe(name: str) -> Description:
    for description in DATASETS:
        if description.name == name:
            return description
    raise DataError(f"unknown data set {name!r}{did_you_mean(name, NAMES)} (known: {', '.join(NAMES)})")


def load(
    name: str | Description,
    directory: str | Path | None = None,
    *,
    download: bool = False,
    fallback: str | None = None,
    text: TextOptions | None = None,
    progress: bool = True,
) -> Dataset:
    """Read a data set into tensors.

    Its files are looked for in `directory`, in $FEDASMU_DATA, in the cache and in the system's data directories. Found
    nowhere, they are downloaded when `download` is set; if not, `fallback = "embedded"` gives the part of Fashion-MNIST
    that comes with the package, and `Dataset.name` tells which of them it is. Otherwise this is a `DataError`.
    """
    description = describe(name) if isinstance(name, str) else name
    directory = _folder(directory)
    _check_fallback(description.name, fallback)
    bars = Progress(progress)
    found = find(description, directory)
    if found is None and download:
        found = _download(description, directory, bars)
    if found is None and fallback is not None:
        description = describe(_EMBEDDED[description.name])
        found = find(description, directory)
    if found is None:
        raise DataError(not_found(description, directory))
    return _read(description, found, text or TextOptions(), bars)


def prepare(name: str, directory: str | Path | None = None, *, text: TextOptions | None = None) -> Dataset:
    """Download and decode now, so that a later `load` is quick and needs no network."""
    return load(name, directory, download=True, text=text)


UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def verify(name: str, directory: str | Path | None = None) -> tuple[int, int]:
    """Check the files that `load` would read against what upstream published; how many were, how many could not be."""
    description, folder = describe(name), _folder(directory)
    found = find(description, folder)
    if found is None:
        raise DataError(not_found(description, folder))
    files = [(place.layout, place.file(file)) for place in found for file in place.layout.files]
    checked = [_is_published(layout, path) for layout, path in files if not path.is_dir()]
    return sum(checked), len(files) - sum(checked)


def _is_published(layout: Upstream, path: Path) -> bool:
    """Whether upstream has told what is in this file; another than that is an error."""
    unpack = UNPACK.get(path.suffix)
    whole, contents = layout.checksum(path.name), "" if unpack is None else layout.checksum(path.stem)
    if not whole and not contents:
        return False
    with path.open("rb") as file:
        if file_digest(file, "md5").hexdigest() == whole:
            return True
    if unpack is not None and contents:  # a distribution may have compressed it anew
        with suppress(OSError, EOFError, zlib.error, lzma.LZMAError), unpack(path) as file:
            if file_digest(file, "md5").hexdigest() == contents:
                return True
    raise DataError(f"{path} is not the file that was published: its md5 is not {whole or contents}")


def where(name: str, directory: str | Path | None = None) -> list[Look]:
    """Each folder that `load` would look into, best first, and what is missing there."""
    return looks(describe(name), _folder(directory))


def here(name: str, directory: str | Path | None = None) -> str:
    """The data set itself if it can be read without a download; otherwise what is in the package of it, if anything."""
    return name if is_here(name, directory) else _EMBEDDED.get(name, name)


def is_here(name: str, directory: str | Path | None = None) -> bool:
    """Whether it can be read without a download."""
    return find(describe(name), _folder(directory)) is not None


def _folder(directory: str | Path | None) -> Path | None:
    return None if directory is None else Path(directory)


def _check_fallback(name: str, fallback: str | None) -> None:
    if fallback not in (None, "embedded"):
        raise DataError(f"fallback = {fallback!r} is not known; it may be embedded")
    if fallback == "embedded" and name not in _EMBEDDED:
        raise DataError(f"fallback = 'embedded' stands in for {', '.join(_EMBEDDED)}, not for {name}: leave it out")


def _download(description: Description, directory: Path | None, progress: Progress) -> tuple[Place, ...] | None:
    from fedasmu.data.download import download

    try:
        download(description, directory, progress)
    except DataError as error:
        raise DataError(f"{error}\n{not_found(description, directory)}") from None
    return find(description, directory)


def _read(description: Description, found: tuple[Place, ...], text: TextOptions, progress: Progress) -> Dataset:
    from fedasmu.data.cache import cached
    from fedasmu.data.examples import dataset_of
    from fedasmu.data.reading import Reading
    from fedasmu.data.text import glove

    reader = cast(Reader, importlib.import_module(f"fedasmu.data.{description.reader}"))
    reading = Reading(description, found, text, progress)
    arrays = cached(reader.read, reading) if description.cached else reader.read(reading)
    vectors = glove(Path(text.glove), arrays.words) if description.text and text.glove is not None else None
    return replace(dataset_of(description, arrays, vectors), folder=str(found[0].folder))
