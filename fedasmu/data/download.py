"""Downloads from upstream into the cache: verified, under a lock, and never half done."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from fedasmu.data.description import Description, Download, Upstream
from fedasmu.data.errors import DataError
from fedasmu.data.places import Place, cache_directory, find_part
from fedasmu.data.progress import Progress

_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 16


def download(description: Description, directory: Path | None, progress: Progress) -> None:
    """Fetch the parts of a data set that are not on this machine."""
    for alternatives in description.parts:
        if find_part(alternatives, directory) is None:
            layout = next((one for one in alternatives if one.downloads), None)
            if layout is None:
                raise DataError(f"{description.name} cannot be downloaded: it has no upstream address")
            _download_layout(layout, progress)


def _download_layout(layout: Upstream, progress: Progress) -> None:
    from filelock import FileLock  # here: it takes time to import, and is seldom needed

    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{_flat(layout)}.lock"):
            if find_part((layout,), None) is None:  # another process may have done it while we waited
                _fetch_all(layout, cache, progress)
    except OSError as error:
        raise DataError(f"the cache directory {cache} cannot be written: {error}") from None


def _fetch_all(layout: Upstream, cache: Path, progress: Progress) -> None:
    target = cache / layout.folders[0]
    partial = cache / f".partial-{_flat(layout)}"  # ours alone while we hold the lock
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    try:
        for one in layout.downloads:
            _fetch(one, partial / one.file, progress)
            _unpack(one.url, partial / one.file)
        complete = _complete_folder(layout, partial)
        target.mkdir(parents=True, exist_ok=True)
        for entry in sorted(complete.iterdir()):
            _replace(entry, target / entry.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(source: Download, path: Path, progress: Progress) -> None:
    kind = "md5" if len(source.checksum) == 32 else "sha256"
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("wb") as file:
        for chunk in _chunks(source, progress):
            file.write(chunk)
            digest.update(chunk)
    if digest.hexdigest() != source.checksum:
        raise DataError(
            f"{source.url} is not the expected file: its {kind} is {digest.hexdigest()}, not {source.checksum}"
        )


def _chunks(source: Download, progress: Progress) -> Iterator[bytes]:
    """Apart from the writing, so that an error of the network is not taken for one of the disk."""
    try:
        with urllib.request.urlopen(source.url, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdecimal() else None
            with progress.bar(source.file, total, in_bytes=True) as advance:
                while chunk := response.read(_CHUNK):
                    yield chunk
                    advance(len(chunk))
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{source.url} could not be downloaded: {reason}") from None


def _unpack(url: str, path: Path) -> None:
    """Unpack an archive beside itself, and an archive inside it too; leave other files alone."""
    try:
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(path.parent, filter="data")
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive_zip:
                archive_zip.extractall(path.parent)
        else:
            return
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{url} is a damaged archive: {error}") from None
    path.unlink()
    for inner in path.parent.glob("*.zip"):
        _unpack(url, inner)


def _complete_folder(layout: Upstream, partial: Path) -> Path:
    places = [Place(layout, folder) for folder in (partial, *(partial / name for name in layout.folders))]
    best = min(places, key=lambda place: len(place.missing))
    if best.missing:
        raise DataError(f"the download of {layout.folders[0]} lacks {', '.join(best.missing)}")
    return best.folder


def _flat(layout: Upstream) -> str:
    return layout.folders[0].replace("/", "-")


def _replace(entry: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    entry.replace(target)
