"""Real files in real folders: what is found where, what is read from where, and what damage is seen."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedasmu import Experiment, data
from fedasmu.data import cache, places
from fedasmu.data.description import Description, Download, Upstream
from fedasmu.data.errors import DataError
from fedasmu.data.har import _signal
from fedasmu.data.places import Place
from fedasmu.data.progress import Progress
from fedasmu.data.reading import Arrays, Reading


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    monkeypatch.setattr(places, "SYSTEM_DIRECTORIES", ())


def test_folders_do_not_pass_for_files(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "project" / name).mkdir(parents=True)
    assert all(look.missing for look in data.where("cifar-100", tmp_path / "project"))


def test_a_folder_is_listed_once_whatever_the_layout_of_its_files(tmp_path: Path) -> None:
    folders = [look.folder for look in data.where("cifar-100", tmp_path)]
    assert tmp_path in folders
    assert len(folders) == len(set(folders))
    (tmp_path / "train").write_bytes(b"")
    (tmp_path / "test").write_bytes(b"")
    (tmp_path / "meta").write_bytes(b"")
    (here,) = (look for look in data.where("cifar-100", tmp_path) if look.folder == tmp_path)
    assert not here.missing, "in one of the layouts"


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not a directory"):
        data.load("cifar-100", tmp_path / "file")


def reading(folder: Path) -> Reading:
    description = replace(data.describe("mnist"), name="made", cached=True, parts=())
    return Reading(description, (Place(Upstream("text", (), ("file",)), folder),), data.TextOptions(), Progress(False))


def read(counted: list[int]) -> Callable[[Reading], Arrays]:
    def decode(reading: Reading) -> Arrays:
        counted.append(1)
        return Arrays(np.arange(3), np.arange(3), np.arange(3), np.arange(3))

    return decode


def test_what_is_decoded_is_used_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("x")
    counted: list[int] = []
    cache.cached(read(counted), reading(tmp_path / "source"))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache, "FileLock", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert cache.cached(read(counted), reading(tmp_path / "source")).train_inputs.tolist() == [0, 1, 2]
    assert counted == [1]


def test_one_folder_under_another_name_is_decoded_once(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "source")
    counted: list[int] = []
    for spelled in (tmp_path / "source", tmp_path / "link", tmp_path / "source" / ".." / "source"):
        cache.cached(read(counted), reading(spelled))
    assert counted == [1]


@pytest.mark.parametrize(("text", "message"), [("1e+300 1\n", "no phone measures"), ("1.0 2.", "no end")])
def test_damaged_readings(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "signal.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        _signal(tmp_path / "signal.txt", 1, 2)


def published(folder: Path, content: bytes) -> Description:
    """A data set of one file, which upstream publishes as a .gz with a checksum."""
    packed = gzip.compress(content, mtime=0)
    (folder / "made").mkdir(parents=True)
    (folder / "made" / "file.gz").write_bytes(packed)
    source = Download("https://nowhere.invalid/file.gz", hashlib.md5(packed).hexdigest())
    layout = Upstream("idx", ("made",), ("file",), (source,), ("", ".gz"), (hashlib.md5(content).hexdigest(),))
    return replace(data.describe("mnist"), name="made", parts=((layout,),))


def test_files_are_compared_with_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = published(tmp_path / "data", b"all of it")
    monkeypatch.setattr(data, "describe", lambda name: made)
    assert data.verify("made", tmp_path / "data") == (1, 0)
    (tmp_path / "data" / "made" / "file.gz").write_bytes(gzip.compress(b"all of it", mtime=1))
    assert data.verify("made", tmp_path / "data") == (1, 0), "compressed anew"
    (tmp_path / "data" / "made" / "file.gz").write_bytes(gzip.compress(b"not all", mtime=0))
    with pytest.raises(DataError, match="is not the file that was published"):
        data.verify("made", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "made")
    with pytest.raises(DataError, match="was not found"):
        data.verify("made", tmp_path / "data")


def test_a_run_says_where_its_data_are_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDASMU_DATA", str(tmp_path / "nowhere"))
    said: list[str] = []
    small = {"model": "softmax", "fleet.devices": 20, "stop.uploads": 1}
    Experiment("quickstart", small).run(tmp_path / "run", say=said.append)
    assert f"data from {places.EMBEDDED}" in said
    assert f"FEDASMU_DATA = {tmp_path / 'nowhere'}: does not exist, so it was passed over" in said
