"""Hugging Face folders, against the real package where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedasmu.data import DataError, TextOptions
from fedasmu.data.huggingface import from_disk

datasets: Any = pytest.importorskip("datasets", reason="the extra package datasets is not installed")


def save(folder: Path, features: dict[str, Any], train: dict[str, Any], test: dict[str, Any]) -> Path:
    splits = {
        name: datasets.Dataset.from_dict(columns, features=datasets.Features({key: features[key] for key in columns}))
        for name, columns in (("train", train), ("test", test))
    }
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def label(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_images(tmp_path: Path, mode: str, channels: int) -> None:
    pictures = [Image.new(mode, (6, 4), 40 * at if mode == "L" else (40 * at, 1, 2)) for at in range(3)]
    features = {"picture": datasets.Image(), "label": label("a", "b", "c"), "who": datasets.Value("string")}
    train = {"picture": pictures, "label": [0, 1, 1], "who": ["eve", "bob", "eve"]}
    path = save(tmp_path / "pictures", features, train, {"picture": pictures[:2], "label": [1, 0]})
    data = from_disk(path, inputs="picture", user="who")
    assert (data.name, data.shape, data.classes) == ("pictures", (channels, 4, 6), 3)
    assert set(data.train.inputs[2, 0].flatten().tolist()) == {80}
    assert data.train.batch(torch.tensor([2]))[0][0, 0, 0, 0].item() == pytest.approx(80 / 255)
    assert data.users is not None
    assert data.users.tolist() == [1, 0, 1]


def test_texts(tmp_path: Path) -> None:
    features = {"text": datasets.Value("string"), "label": label("neg", "pos")}
    train = {"text": ["bad film", "good, good film"], "label": [0, 1]}
    path = save(tmp_path / "texts", features, train, {"text": ["new film"], "label": [1]})
    data = from_disk(path, inputs="text", text=TextOptions(vocabulary=4, length=3))
    assert data.words == ("<pad>", "<unk>", "film", "good")
    assert data.train.inputs.tolist() == [[0, 1, 2], [3, 3, 2]]
    assert data.test.inputs.tolist() == [[0, 1, 2]]


def test_numbers(tmp_path: Path) -> None:
    features = {"x": datasets.Array2D((2, 3), "float32"), "y": datasets.Value("int64")}
    values = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    path = save(tmp_path / "numbers", features, {"x": values, "y": [0, 1, 4]}, {"x": values[:1], "y": [2]})
    data = from_disk(path, inputs="x", targets="y")
    assert (data.shape, data.classes, data.train.inputs.dtype) == ((2, 3), 5, torch.float32)
    assert np.array_equal(data.train.inputs.numpy(), values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    features = {
        "x": datasets.Sequence(datasets.Value("int64")),
        "text": datasets.Value("string"),
        "label": datasets.Value("int64"),
        "name": datasets.Value("string"),
    }
    columns = {"x": [[1, 2], [1]], "text": ["a", ""], "label": [0, -1], "name": ["a", "b"]}
    return save(tmp_path / "bad", features, columns, columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "nothing"}, "the split train lacks the column nothing"),
        ({"inputs": "x", "user": "nobody"}, "the split train lacks the column nobody"),
        ({"inputs": "x", "test": "validation"}, "has no split 'validation'"),
        ({"inputs": "x"}, "must all have the same shape"),
        ({"inputs": "text"}, "example 1 has an empty text"),
        ({"inputs": "x", "targets": "name"}, "must hold one whole number"),
        ({"inputs": "label"}, "has the label -1"),
    ],
)
def test_bad_input(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        from_disk(folder, **options)
    assert str(folder) in str(error.value)


def test_not_a_folder_of_theirs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder that save_to_disk wrote"):
        from_disk(tmp_path, inputs="x")
