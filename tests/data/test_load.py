"""Where data sets are looked for, what comes with the package, and what is said when nothing is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedasmu.data import DATASETS, DataError, describe, load, places, where
from helpers.idx_files import small, write


@pytest.fixture(autouse=True)
def nothing_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    monkeypatch.setattr(places, "SYSTEM_DIRECTORIES", (tmp_path / "system",))


def test_the_catalogue_is_cheap_to_import() -> None:
    code = "import sys, fedasmu.data; print([m for m in ('torch', 'numpy', 'matplotlib', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_catalogue() -> None:
    assert len({description.name for description in DATASETS}) == len(DATASETS)
    for description in DATASETS:
        assert (places.EMBEDDED.parent / f"{description.reader}.py").exists()
        assert len(description.mean) == len(description.std)
        assert description.embedded or all(any(one.downloads for one in part) for part in description.parts)
        for download in (one for part in description.parts for layout in part for one in layout.downloads):
            assert len(download.checksum) in (32, 64)


def test_the_embedded_part_is_balanced() -> None:
    data = load("fashion-mnist-small")
    assert (len(data.train), len(data.test), data.shape) == (10_000, 2_000, (1, 28, 28))
    assert data.train.targets.bincount().tolist() == [1_000] * 10
    assert data.test.targets.bincount().tolist() == [200] * 10
    assert data.train.inputs.float().mean().item() == pytest.approx(0.286 * 255, abs=1)
    assert where("fashion-mnist-small") == [places.Look(places.EMBEDDED)]
    assert "MIT" in (places.EMBEDDED / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("named", ["argument", "variable"])
def test_a_folder_or_its_usual_subfolder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    write(tmp_path / "mine" / folder, "fashion-mnist")
    if named == "variable":
        monkeypatch.setenv("FEDASMU_DATA", str(tmp_path / "mine"))
    data = load(small("fashion-mnist"), tmp_path / "mine" if named == "argument" else None)
    assert len(data.train) == 60


@pytest.mark.parametrize("place", ["cache/fedasmu/data", "system"])
def test_shared_folders_are_searched_by_subfolder(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, "mnist")
    with pytest.raises(DataError, match="was not found"):
        load(small("mnist"))
    write(tmp_path / place / "mnist", "mnist")
    assert len(load(small("mnist")).train) == 60


def test_the_order_of_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDASMU_DATA", str(tmp_path / "variable"))
    write(tmp_path / "system" / "mnist", "mnist")
    bases = ["argument", "variable", "cache", "system"]
    listed = where("mnist", tmp_path / "argument")
    assert [look.folder for look in listed if not look.missing] == [tmp_path / "system" / "mnist"]
    order = [look.folder.relative_to(tmp_path).parts[0] for look in listed]
    assert order == sorted(order, key=bases.index)
    assert set(order) == set(bases)


def test_a_folder_with_a_part_of_the_files_says_what_it_lacks(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", "mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    here = next(look for look in where("mnist", folder) if look.folder == folder)
    assert here == places.Look(folder, ("t10k-labels-idx1-ubyte",), partial=True)
    assert all(look.missing and not look.partial for look in where("mnist", folder) if look.folder != folder)
    write(folder, "mnist")
    assert next(look for look in where("mnist", folder) if look.folder == folder) == places.Look(folder)
    # who wrote the digits is another part of another data set, which may be in the same folder
    writers = next(look for look in where("mnist-writers", folder) if look.folder == folder)
    assert writers == places.Look(folder, ("qmnist-train-labels-idx2-int",), partial=True)


def test_what_to_put_where(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", "fashion-mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError) as error:
        load("fashion-mnist", folder)
    message = str(error.value)
    assert "fashion-mnist was not found" in message
    assert str(tmp_path / "cache" / "fedasmu" / "data" / "fashion-mnist") in message
    for file in describe("fashion-mnist").parts[0][0].files:
        assert f"  {file}\n" in message
    assert "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz" in message
    assert f"{folder} has a part of them, but lacks t10k-labels-idx1-ubyte" in message


def test_each_part_and_each_layout_is_explained() -> None:
    with pytest.raises(DataError, match=r"data_batch_1\.bin[^$]*Or put[^$]*data_batch_1\n"):
        load("cifar-10")
    with pytest.raises(DataError, match=r"train-images[^$]*qmnist-train-labels"):
        load("mnist-writers")


def test_fallback(tmp_path: Path) -> None:
    data = load("fashion-mnist", fallback="embedded")
    assert data.name == "fashion-mnist-small"
    write(tmp_path / "mine", "fashion-mnist")
    assert load(small("fashion-mnist"), tmp_path / "mine", fallback="embedded").name == "fashion-mnist"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: load("fashion-mnits"), "unknown data set 'fashion-mnits'; did you mean fashion-mnist?"),
        (lambda _: load("x"), "unknown data set 'x' (known: fashion-mnist, fashion-mnist-small, mnist,"),
        (lambda _: where("x"), "unknown data set 'x'"),
        (lambda _: load("mnist", fallback="none"), "fallback = 'none' is not known; it may be embedded"),
        (lambda folder: load("mnist", folder / "nowhere"), "nowhere does not exist"),
        (lambda folder: load("cifar-10", fallback="embedded"), "fallback = 'embedded' stands in for fashion-mnist"),
    ],
)
def test_bad_arguments(tmp_path: Path, call: object, message: str) -> None:
    with pytest.raises(DataError) as error:
        call(tmp_path)  # type: ignore[operator]
    assert message in str(error.value)
