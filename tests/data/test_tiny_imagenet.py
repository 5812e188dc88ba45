"""Tiny-ImageNet-200 in upstream's folders, with its greyscale files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedasmu.data import DataError, Description, describe, load

NAMES = ["n02124075", "n01443537", "n04067472"]  # not in the order of the alphabet
EACH, TEST = 4, 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small() -> Description:
    return replace(describe("tiny-imagenet"), classes=len(NAMES), train=EACH * len(NAMES), test=TEST)


def save(path: Path, level: int, mode: str = "RGB", size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = level if mode == "L" else (level, 255 - level, 7)
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    for at, name in enumerate(NAMES):
        for number in range(EACH):
            save(
                root / "train" / name / "images" / f"{name}_{number}.JPEG",
                40 * at + number,
                "L" if number == 1 else "RGB",
            )
        (root / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
    lines = []
    for number in range(TEST):
        save(root / "val" / "images" / f"val_{number}.JPEG", 10 * number)
        lines.append(f"val_{number}.JPEG\t{NAMES[number % 3]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(NAMES) + "\n")
    (root / "test" / "images").mkdir(parents=True)
    return root


@pytest.mark.parametrize("level", [0, 1])
def test_reads_the_folders(folder: Path, level: int) -> None:
    data = load(small(), [folder, folder.parent][level])
    assert data.shape == (3, 64, 64)
    assert data.train.targets.tolist() == [0] * EACH + [1] * EACH + [2] * EACH  # the order of wnids.txt
    assert data.test.targets.tolist() == [0, 1, 2, 0, 1, 2]
    colour = data.train.inputs[EACH + 2].float().mean((1, 2))
    assert np.allclose(colour, [42, 213, 7], atol=3)
    grey = data.train.inputs[EACH + 1].float().mean((1, 2))
    assert np.allclose(grey, [41, 41, 41], atol=3)


def test_a_part_with_whole_classes_is_taken_and_says_so(folder: Path) -> None:
    (folder / "wnids.txt").write_text("\n".join(NAMES[:2]) + "\n")
    annotations = folder / "val" / "val_annotations.txt"
    kept = [line for line in annotations.read_text().splitlines() if NAMES[2] not in line]
    annotations.write_text("\n".join(kept) + "\n")
    data = load(small(), folder)
    assert (data.name, data.classes) == ("tiny-imagenet-2-of-3", 2)
    assert data.train.targets.tolist() == [0] * EACH + [1] * EACH
    assert data.test.targets.tolist() == [0, 1, 0, 1]


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated": (
        "train/n01443537/images/n01443537_2.JPEG",
        lambda file: file.write_bytes(file.read_bytes()[:300]),
        "is not a whole image",
    ),
    "not an image": ("val/images/val_3.JPEG", lambda file: file.write_bytes(b"hello"), "is not a whole image"),
    "wrong size": (
        "train/n01443537/images/n01443537_2.JPEG",
        lambda file: save(file, 3, size=(32, 64)),
        "is 32 x 64 pixels: expected 64 x 64",
    ),
    "an image short": (
        "train/n01443537/images",
        lambda path: (path / "n01443537_2.JPEG").unlink(),
        "3 JPEG files: expected 4",
    ),
    "no validation image": ("val/images/val_3.JPEG", lambda file: file.unlink(), "val_3.JPEG is missing"),
    "class count": ("wnids.txt", lambda file: file.write_text("n02124075\n"), "names 1 classes: expected 2 to 3"),
    "unknown class": (
        "val/val_annotations.txt",
        lambda file: file.write_text(file.read_text().replace("val_1.JPEG\tn01443537", "val_1.JPEG\tn9")),
        "line 2",
    ),
    "no tabs": ("val/val_annotations.txt", lambda file: file.write_text("val_0.JPEG n02124075\n"), "line 1"),
    "few annotations": (
        "val/val_annotations.txt",
        lambda file: file.write_text(f"val_0.JPEG\t{NAMES[0]}\t0\t0\t1\t1\n"),
        "has 1 lines: expected 6",
    ),
    "not text": ("wnids.txt", lambda file: file.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(folder: Path, case: str) -> None:
    file, change, message = DAMAGE[case]
    change(folder / file)
    with pytest.raises(DataError, match=message) as error:
        load(small(), folder)
    assert str(folder / file) in str(error.value)
