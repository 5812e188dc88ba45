"""Downloads: verified, unpacked, shared, and never half done."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedasmu.data import DataError, Description, load, places
from fedasmu.data.description import Download
from helpers.idx_files import small, write


class Upstream:
    """A web server with the files of a folder. `requests` are the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.requests = folder, list[str]()
        requests = self.requests

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                requests.append(self.path)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def download(self, file: str) -> Download:
        content = (self.folder / file).read_bytes()
        url = f"http://127.0.0.1:{self.server.server_address[1]}/{file}"
        return Download(url, hashlib.md5(content).hexdigest())


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    (tmp_path / "upstream").mkdir()
    here = Upstream(tmp_path / "upstream")
    yield here
    here.server.shutdown()
    here.server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    monkeypatch.setattr(places, "SYSTEM_DIRECTORIES", ())
    return tmp_path / "cache" / "fedasmu" / "data"


def with_downloads(description: Description, *downloads: Download) -> Description:
    layout = replace(description.parts[0][0], downloads=downloads)
    return replace(description, parts=((layout,), *description.parts[1:]))


@pytest.fixture
def fashion(upstream: Upstream) -> Description:
    description = small("fashion-mnist")
    write(upstream.folder, "fashion-mnist", gzip.compress, ".gz")
    files = description.parts[0][0].files
    return with_downloads(description, *(upstream.download(f"{file}.gz") for file in files))


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_files_are_fetched_once(upstream: Upstream, fashion: Description, cache: Path) -> None:
    assert len(load(fashion, download=True).train) == 60
    assert left_behind(cache / "fashion-mnist") == sorted(f"{file}.gz" for file in fashion.parts[0][0].files)
    assert len(upstream.requests) == 4
    load(fashion, download=True)
    load(fashion)
    assert len(upstream.requests) == 4


def test_nothing_is_fetched_unasked(upstream: Upstream, fashion: Description) -> None:
    with pytest.raises(DataError, match="was not found"):
        load(fashion)
    assert upstream.requests == []


def test_several_at_once_fetch_once(upstream: Upstream, fashion: Description) -> None:
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load(fashion, download=True), range(4)))
    assert [len(data.train) for data in loaded] == [60] * 4
    assert len(upstream.requests) == 4


def test_a_wrong_checksum(fashion: Description, cache: Path) -> None:
    last = replace(fashion.parts[0][0].downloads[-1], checksum="0" * 32)
    wrong = with_downloads(fashion, *fashion.parts[0][0].downloads[:-1], last)
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is not the expected file: its md5 is") as error:
        load(wrong, download=True)
    assert "Put these files" in str(error.value)
    assert left_behind(cache) == []


def test_a_missing_file_upstream(upstream: Upstream, fashion: Description, cache: Path) -> None:
    (upstream.folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz could not be downloaded: .*"):
        load(fashion, download=True)
    assert left_behind(cache) == []


def test_no_network(fashion: Description, cache: Path) -> None:
    offline = with_downloads(fashion, Download("http://127.0.0.1:9/train-images-idx3-ubyte.gz", "0" * 32))
    with pytest.raises(DataError, match="could not be downloaded") as error:
        load(offline, download=True)
    assert "Put these files" in str(error.value)
    assert str(cache / "fashion-mnist") in str(error.value)
    assert left_behind(cache) == []


def test_what_a_killed_process_left_is_removed(fashion: Description, cache: Path) -> None:
    partial_folder = cache / ".partial-fashion-mnist"
    partial_folder.mkdir(parents=True)
    (partial_folder / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    assert len(load(fashion, download=True).train) == 60
    assert not partial_folder.exists()


def test_the_cache_cannot_be_written(fashion: Description, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        load(fashion, download=True)


def tar(folder: Path, name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add(folder, name)
    return file.getvalue()


def zipped(folder: Path, name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"{name}/{path.name}")
    return file.getvalue()


def zip_in_zip(folder: Path, name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inner.zip", zipped(folder, name))
        archive.writestr("inner.names", "something else")
    return file.getvalue()


@pytest.mark.parametrize(("pack", "suffix"), [(tar, ".tar.gz"), (zipped, ".zip"), (zip_in_zip, ".zip")])
def test_archives_are_unpacked(upstream: Upstream, tmp_path: Path, cache: Path, pack: object, suffix: str) -> None:
    files = write(tmp_path / "files", "mnist")
    (upstream.folder / f"mnist{suffix}").write_bytes(pack(files, "mnist"))  # type: ignore[operator]
    description = with_downloads(small("mnist"), upstream.download(f"mnist{suffix}"))
    assert len(load(description, download=True).train) == 60
    assert left_behind(cache) == sorted(path.name for path in files.iterdir())


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_a_damaged_archive(upstream: Upstream, cache: Path, suffix: str) -> None:
    (upstream.folder / f"mnist{suffix}").write_bytes(b"not an archive")
    with pytest.raises(DataError, match="is a damaged archive"):
        load(with_downloads(small("mnist"), upstream.download(f"mnist{suffix}")), download=True)
    assert left_behind(cache) == []


def test_an_incomplete_archive(upstream: Upstream, tmp_path: Path, cache: Path) -> None:
    files = write(tmp_path / "files", "mnist")
    (files / "t10k-labels-idx1-ubyte").unlink()
    (upstream.folder / "mnist.tar.gz").write_bytes(tar(files, "mnist"))
    with pytest.raises(DataError, match="the download of mnist lacks t10k-labels-idx1-ubyte"):
        load(with_downloads(small("mnist"), upstream.download("mnist.tar.gz")), download=True)
    assert left_behind(cache) == []


def test_an_archive_cannot_write_elsewhere(upstream: Upstream, tmp_path: Path, cache: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../../escaped"), io.BytesIO())
    (upstream.folder / "mnist.tar.gz").write_bytes(file.getvalue())
    with pytest.raises(DataError, match="is a damaged archive"):
        load(with_downloads(small("mnist"), upstream.download("mnist.tar.gz")), download=True)
    assert not list(tmp_path.rglob("escaped"))
