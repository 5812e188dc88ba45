"""UCI HAR as upstream writes it: fixed-width numbers, one window a line, one file a sensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedasmu.data import DataError, Description, describe, load
from fedasmu.run import materials
from fedasmu.settings.recipe import checked

SENSORS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
COUNTS = {"train": 40, "test": 20}
SUBJECTS = {"train": [1, 3], "test": [2]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small() -> Description:
    return replace(describe("uci-har"), train=COUNTS["train"], test=COUNTS["test"])


def number(value: float) -> str:
    """As upstream prints: a three-digit exponent in a field of 16."""
    digits, exponent = f"{value:.7e}".split("e")
    return f"{digits}e{exponent[0]}{int(exponent[1:]):03d}".rjust(16)


def signal(split: str, sensor: int) -> np.ndarray:
    return np.random.default_rng([len(split), sensor]).normal(size=(COUNTS[split], 128))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "UCI HAR Dataset"
    for split, count in COUNTS.items():
        (root / split / "Inertial Signals").mkdir(parents=True)
        for at, sensor in enumerate(SENSORS):
            lines = ("".join(map(number, window)) for window in signal(split, at))
            (root / split / "Inertial Signals" / f"{sensor}_{split}.txt").write_text("\n".join(lines) + "\n")
        people = np.repeat(SUBJECTS[split], count // len(SUBJECTS[split]))
        (root / split / f"subject_{split}.txt").write_text("".join(f"{person}\n" for person in people))
        activities = [1 + at // 10 % 2 for at in range(count)]
        (root / split / f"y_{split}.txt").write_text("".join(f"{activity}\n" for activity in activities))
    return root


@pytest.mark.parametrize("level", [0, 1])
def test_every_person_trains_and_the_last_fifth_is_the_test(folder: Path, level: int) -> None:
    data = load(small(), [folder, folder.parent][level])
    assert data.shape == (9, 128)
    assert data.users is not None
    assert Counter(data.users.tolist()) == {1: 14, 3: 14, 2: 14}
    assert (len(data.train), len(data.test)) == (42, 12)
    assert sorted(set(data.test.targets.tolist())) == [0, 1]
    assert np.allclose(data.train.inputs[0].numpy(), [signal("train", at)[0] for at in range(9)], atol=1e-6)
    # windows 8 and 9 of the first person's first activity are held out; 7, which has half of 8's readings, is nowhere
    assert np.allclose(data.test.inputs[1].numpy(), [signal("train", at)[9] for at in range(9)], atol=1e-6)
    assert np.allclose(data.train.inputs[6].numpy(), [signal("train", at)[6] for at in range(9)], atol=1e-6)
    assert np.allclose(data.train.inputs[7].numpy(), [signal("train", at)[10] for at in range(9)], atol=1e-6)


def test_what_is_held_out_to_tune_on_shares_no_reading_with_what_is_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window has half of the one before it. A fifth is held out of the 7 that each person has of an activity."""
    dataset = load(small(), folder)
    place = {float(window.sum()): at for at, window in enumerate(dataset.train.inputs)}
    monkeypatch.setattr(materials, "_read", lambda settings, say: dataset)
    recipe = {"algorithm": "fedavg", "data": {"name": "uci-har", "split": "user", "held_out": 0.2}}
    data, _ = materials.federated_data(checked(recipe), print)
    train, held = (sorted(place[float(window.sum())] for window in one.inputs) for one in (data.train, data.test))
    assert held == [6, 13, 20, 27, 34, 41]
    assert train == [at for at in range(42) if at % 7 < 5]
    assert [len(shard) for shard in data.shards] == [10, 10, 10]


def test_devices_that_measure_on_readings_that_they_train_on_are_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they hold out is drawn at random, and the server does not know what is in it."""
    dataset = load(small(), folder)
    monkeypatch.setattr(materials, "_read", lambda settings, say: dataset)
    for share, told in ((0.2, True), (0.0, False)):
        recipe = {
            "algorithm": "fedavg",
            "data": {"name": "uci-har", "split": "user"},
            "evaluate": {"on_devices": share},
        }
        heard: list[str] = []
        materials.federated_data(checked(recipe), heard.append)
        assert any("has readings that it trains on" in line for line in heard) == told


GYRO = "train/Inertial Signals/body_gyro_y_train.txt"
DAMAGE: dict[str, tuple[str, Callable[[str], str], str]] = {
    "truncated": (GYRO, lambda old: old[:-200], "its last line has no end"),
    "lines lost": (GYRO, lambda old: old[: old.rindex("\n", 0, -1) + 1], "numbers: expected 40 x 128"),
    "empty": (GYRO, lambda _: "", "0 numbers: expected 40 x 128"),
    "words": (GYRO, lambda old: "abc" + old[3:], "something that is not a number"),
    "nan": (GYRO, lambda old: "nan".rjust(16) + old[16:], "something that is not a number"),
    "letters": (GYRO, lambda old: old[:-1] + "é", "cannot be read"),
    "labels": ("test/y_test.txt", lambda old: "7" + old[1:], "an activity that is not 1 to 6"),
    "label 0": ("test/y_test.txt", lambda old: "0" + old[1:], "an activity that is not 1 to 6"),
    "fractions": ("test/y_test.txt", lambda old: "1.5" + old[1:], "one whole number a line"),
    "few labels": ("train/y_train.txt", lambda old: old[2:], "39 numbers: expected 40"),
    "few subjects": ("train/subject_train.txt", lambda old: old[2:], "39 numbers: expected 40"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(folder: Path, case: str) -> None:
    file, change, message = DAMAGE[case]
    (folder / file).write_text(change((folder / file).read_text()), encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        load(small(), folder)
    assert str(folder / file) in str(error.value)
