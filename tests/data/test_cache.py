"""The cache of decoded data: used, shared, renewed when the source changes, and never in the way."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedasmu.data import TextOptions, describe
from fedasmu.data import cache as cache_module
from fedasmu.data.cache import cached, key
from fedasmu.data.description import Upstream
from fedasmu.data.errors import DataError
from fedasmu.data.examples import dataset_of
from fedasmu.data.places import Place
from fedasmu.data.progress import Progress
from fedasmu.data.reading import Arrays, Reading


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedasmu" / "data" / "decoded"


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    (tmp_path / "source" / "folder").mkdir(parents=True)
    (tmp_path / "source" / "file.txt").write_text("a")
    (tmp_path / "source" / "folder" / "inner.txt").write_text("b")
    found = Place(Upstream("text", (), ("file.txt", "folder/")), tmp_path / "source")
    return Reading(describe("imdb"), (found,), TextOptions(), Progress(shown=False))


class Reader:
    """Counts in a file how often it decodes, so that other processes count too."""

    def __init__(self, calls: Path, pause: float = 0.0) -> None:
        self.calls, self.pause = calls, pause

    def __call__(self, reading: Reading) -> Arrays:
        with self.calls.open("a") as file:
            file.write("x")
        time.sleep(self.pause)
        inputs = reading.new_array("train_inputs", (4, 3), np.int64)
        inputs[:] = np.arange(12).reshape(4, 3)
        targets = np.array([0, 1, 0, 1])
        return Arrays(inputs, targets, inputs[:2] + 1, targets[:2], users=targets + 5, words=("a", "é"))

    @property
    def count(self) -> int:
        return len(self.calls.read_text()) if self.calls.exists() else 0


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "calls")


def check(arrays: Arrays) -> None:
    assert arrays.train_inputs.tolist() == np.arange(12).reshape(4, 3).tolist()
    assert arrays.test_inputs.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert arrays.train_targets.tolist() == [0, 1, 0, 1]
    assert arrays.users is not None
    assert arrays.users.tolist() == [5, 6, 5, 6]
    assert arrays.words == ("a", "é")


def test_decoded_once_and_mapped(reader: Reader, reading: Reading, cache: Path) -> None:
    for _ in range(3):
        arrays = cached(reader, reading)
        check(arrays)
        assert isinstance(arrays.train_inputs, np.memmap)
    assert reader.count == 1
    assert not list(cache.glob(".partial*"))


def test_a_write_stays_in_this_process(reader: Reader, reading: Reading) -> None:
    data = dataset_of(describe("imdb"), cached(reader, reading))
    data.train.inputs[0, 0] = 99
    check(cached(reader, reading))


@pytest.mark.parametrize("file", ["file.txt", "folder/inner.txt", "folder/new.txt"])
def test_a_changed_source_is_read_again(reader: Reader, reading: Reading, file: str) -> None:
    cached(reader, reading)
    path = reading.found[0].folder / file
    path.write_text("c")
    os.utime(path, ns=(1, 2))
    cached(reader, reading)
    assert reader.count == 2


def test_the_key(reading: Reading) -> None:
    other = [
        replace(reading, text=TextOptions(length=7)),
        replace(reading, text=TextOptions(padding="post")),
        replace(reading, description=replace(reading.description, train=4)),
    ]
    assert len({key(one) for one in [reading, *other]}) == 4
    assert key(replace(reading, text=TextOptions(glove="x"))) == key(reading)  # vectors are added later


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", None])
def test_a_damaged_cache_is_made_again(reader: Reader, reading: Reading, cache: Path, content: bytes | None) -> None:
    cached(reader, reading)
    file = next(cache.glob("*/train_inputs.npy"))
    file.write_bytes(file.read_bytes()[:-8] if content is None else content)
    check(cached(reader, reading))
    next(cache.glob("*/test_targets.npy")).unlink()
    check(cached(reader, reading))
    assert reader.count == 3


def test_what_a_killed_process_left_is_removed(reader: Reader, reading: Reading, cache: Path) -> None:
    left = cache / f".partial-imdb-{key(reading)}"
    left.mkdir(parents=True)
    (left / "train_inputs.npy").write_bytes(b"half")
    check(cached(reader, reading))
    assert not left.exists()


def test_an_error_leaves_nothing(reading: Reading, cache: Path) -> None:
    def fail(reading: Reading) -> Arrays:
        reading.new_array("train_inputs", (4, 3), np.int64)
        raise DataError("bad")

    with pytest.raises(DataError, match="bad"):
        cached(fail, reading)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written(
    reader: Reader, reading: Reading, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        check(cached(reader, reading))
    assert len(caplog.records) == 1
    assert "imdb is decoded in memory" in caplog.text


def test_a_full_disk(
    reader: Reader, reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 1 << 62)
    check(cached(reader, reading))
    assert "MiB are needed" in caplog.text


def _load(calls: Path, reading: Reading, start: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    check(cached(Reader(calls, pause=0.3), reading))


def test_two_processes_decode_once(tmp_path: Path, reading: Reading) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    workers = [context.Process(target=_load, args=(tmp_path / "calls", reading, start)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert Reader(tmp_path / "calls").count == 1
