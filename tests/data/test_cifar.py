"""CIFAR-10 and CIFAR-100 as upstream writes them, binary and pickled."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedasmu.data import DataError, describe, load
from fedasmu.data.description import Description

TRAIN, TEST = 50, 20  # CIFAR-10 has five training batches


def small(name: str) -> Description:
    return replace(describe(name), train=TRAIN, test=TEST)


def contents(name: str, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    classes = describe(name).classes
    return random.integers(0, classes, count), random.integers(0, 256, (count, 3072), dtype=np.uint8)


def batches(name: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    if name == "cifar-10":
        train = [(f"data_batch_{at}", *contents(name, at, TRAIN // 5)) for at in range(1, 6)]
        return [*train, ("test_batch", *contents(name, 6, TEST))]
    return [("train", *contents(name, 1, TRAIN)), ("test", *contents(name, 2, TEST))]


def write_binary(folder: Path, name: str) -> None:
    for file, labels, pixels in batches(name):
        head = labels[:, None] if name == "cifar-10" else np.stack([labels // 5, labels], axis=1)
        (folder / f"{file}.bin").write_bytes(np.hstack([head.astype(np.uint8), pixels]).tobytes())


def write_pickles(folder: Path, name: str) -> None:
    for file, labels, pixels in batches(name):
        content: dict[bytes, Any] = {b"data": pixels, b"batch_label": b"training batch"}
        if name == "cifar-10":
            content[b"labels"] = labels.tolist()
        else:
            content |= {b"fine_labels": labels.tolist(), b"coarse_labels": (labels // 5).tolist()}
        (folder / file).write_bytes(pickle.dumps(content, protocol=4))


@pytest.mark.parametrize("write", [write_binary, write_pickles])
@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_both_layouts(tmp_path: Path, name: str, write: Callable[[Path, str], None]) -> None:
    write(tmp_path, name)
    data = load(small(name), tmp_path)
    expected = batches(name)
    assert data.shape == (3, 32, 32)
    assert np.array_equal(data.train.targets.numpy(), np.concatenate([labels for _, labels, _ in expected[:-1]]))
    pixels = np.concatenate([pixels for _, _, pixels in expected[:-1]])
    assert np.array_equal(data.train.inputs.numpy().reshape(TRAIN, 3072), pixels)
    assert np.array_equal(data.test.inputs.numpy().reshape(TEST, 3072), expected[-1][2])
    assert np.array_equal(data.test.targets.numpy(), expected[-1][1])


def test_the_named_folder_comes_before_the_better_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "named").mkdir()
    write_binary(tmp_path / "elsewhere", "cifar-10")
    (tmp_path / "elsewhere" / "test_batch.bin").write_bytes(b"")
    write_pickles(tmp_path / "named", "cifar-10")
    monkeypatch.setenv("FEDASMU_DATA", str(tmp_path / "elsewhere"))
    assert len(load(small("cifar-10"), tmp_path / "named").train) == TRAIN


def test_colours_come_one_after_the_other(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar-10")
    data = load(small("cifar-10"), tmp_path)
    record = batches("cifar-10")[0][2][0]
    assert data.train.inputs[0, 2, 1, 5] == record[2 * 1024 + 1 * 32 + 5]  # blue, second row, sixth column
    blue = (data.train.inputs[0, 2].double() / 255 - 0.4465) / 0.2616
    assert torch.allclose(data.train.batch(torch.tensor([0]))[0][0, 2].double(), blue, atol=1e-5)


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


BATCH = {b"data": np.zeros((TRAIN // 5, 3072), np.uint8), b"labels": [0] * (TRAIN // 5)}
PICKLE_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda old: old[: len(old) // 2], "is damaged"),
    "empty": (lambda _: b"", "is damaged"),
    "not a pickle": (lambda _: b"hello world", "is damaged"),
    "code": (lambda _: pickle.dumps({b"data": Attack()}), "refers to (posix|nt).mkdir"),
    "a list": (lambda _: pickle.dumps([1, 2]), "not a CIFAR batch"),
    "no labels": (lambda _: pickle.dumps({b"data": BATCH[b"data"]}), "lacks data or labels"),
    "few images": (lambda _: pickle.dumps({**BATCH, b"data": np.zeros((3, 3072), np.uint8)}), "10 x 3072 bytes"),
    "floats": (lambda _: pickle.dumps({**BATCH, b"data": np.zeros((10, 3072))}), "10 x 3072 bytes"),
    "few labels": (lambda _: pickle.dumps({**BATCH, b"labels": [1]}), "not a list of 10 whole numbers"),
    "odd labels": (lambda _: pickle.dumps({**BATCH, b"labels": ["a"] * 10}), "not a list of 10 whole numbers"),
    "label range": (lambda _: pickle.dumps({**BATCH, b"labels": [0] * 9 + [10]}), "has the label 10"),
    "negative label": (lambda _: pickle.dumps({**BATCH, b"labels": [0] * 9 + [-1]}), "has the label -1"),
}


@pytest.mark.parametrize("case", PICKLE_DAMAGE)
def test_a_damaged_pickle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    change, message = PICKLE_DAMAGE[case]
    monkeypatch.chdir(tmp_path)
    write_pickles(tmp_path, "cifar-10")
    file = tmp_path / "data_batch_2"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=message) as error:
        load(small("cifar-10"), tmp_path)
    assert str(file) in str(error.value)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
@pytest.mark.parametrize("change", [lambda old: old[:-1], lambda old: old + b"x", lambda old: b"", lambda old: old * 2])
def test_a_binary_file_has_an_exact_size(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    write_binary(tmp_path, name)
    file = next(tmp_path.glob("*test*.bin"))
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=f"{file.name} has .* bytes: expected"):
        load(small(name), tmp_path)


def test_binary_labels_are_checked(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar-10")
    file = tmp_path / "test_batch.bin"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(DataError, match=r"test_batch\.bin has the label 255"):
        load(small("cifar-10"), tmp_path)
