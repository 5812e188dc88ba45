"""The recipes whose devices are people, on files as large and as laid out as upstream's, with content made up."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedasmu import Experiment, Result
from fedasmu.data import describe
from helpers.idx_files import idx

SHORT = {"stop.uploads": 12, "evaluate.every": 6}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def result_of(recipe: str, folder: Path) -> Result:
    return Experiment(recipe, {**SHORT, "data.dir": str(folder)}).run(folder.parent / "run")


def test_every_writer_is_a_device(tmp_path: Path) -> None:
    """The images as MNIST's, compressed; beside them QMNIST's table of who wrote each."""
    known, folder, writers = describe("mnist-writers"), tmp_path / "mnist", 539
    folder.mkdir()
    labels = {"train": np.arange(known.train) * 7 // 3 % 10, "t10k": np.arange(known.test) % 10}
    labels["train"][: len(known.first_targets)] = known.first_targets
    for prefix, digits in labels.items():
        images = np.zeros((len(digits), 28, 28), np.uint8)
        images[np.arange(len(digits)), 2 * digits + 4] = 255  # a line, as high as the digit
        for name, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", digits.astype(np.uint8))):
            with gzip.open(folder / f"{prefix}-{name}.gz", "wb", compresslevel=1) as file:
                file.write(idx(content))
    table = np.zeros((known.train, 8), ">i4")
    table[:, 0], table[:, 2] = labels["train"], 100 + np.arange(known.train) % writers
    (folder / "qmnist-train-labels-idx2-int").write_bytes(idx(table))
    result = result_of("lenet-mnist-writers", folder)
    assert result.config["fleet"]["devices"] == writers
    assert result.summary["uploads"] == 12
    assert result.last_score > result.curve["accuracy"][0]


def test_every_person_is_a_device(tmp_path: Path) -> None:
    """UCI HAR's text files: a window a line, numbers of 16 letters, one file a sensor."""
    known, folder = describe("uci-har"), tmp_path / "UCI HAR Dataset"
    generator = np.random.default_rng(0)
    lines = [
        "".join(f"{x: .7e}".replace("e-0", "e-00").replace("e+0", "e+00").rjust(16) for x in window) + "\n"
        for window in generator.normal(size=(known.classes, 128))
    ]
    for split, count, people in (("train", known.train, range(1, 22)), ("test", known.test, range(22, 31))):
        (folder / split / "Inertial Signals").mkdir(parents=True)
        activities = np.arange(count) // 20 % known.classes
        persons = np.sort(np.resize(list(people), count))
        (folder / split / f"y_{split}.txt").write_text("".join(f"{one + 1}\n" for one in activities))
        (folder / split / f"subject_{split}.txt").write_text("".join(f"{one}\n" for one in persons))
        windows = "".join(lines[one] for one in activities)
        for name in (one for one in known.parts[0][0].files if one.startswith(f"{split}/Inertial")):
            (folder / name).write_text(windows)
    result = result_of("mlp-uci-har", folder)
    assert result.config["fleet"]["devices"] == 30
    assert result.summary["uploads"] == 12
    assert result.last_score > result.curve["accuracy"][0]
