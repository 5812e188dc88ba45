"""CSV, folders of images and npz as federations: the page from files to a result runs as it stands."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedasmu import Result, cli
from fedasmu.data.files import _numbered, from_csv, from_folder, from_npz
from fedasmu.errors import UserError
from helpers.repository import ROOT

PAGE = ROOT / "docs" / "how-to" / "your-files.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the files that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "own_data.py"))["write_measurements"](tmp_path / "measurements.csv")
    random = np.random.default_rng(0)
    for name, level in (("cat", 60), ("dog", 180)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for who in ("anna", "ben", "cleo", "dora"):
            for number in range(6):
                pixels = np.clip(random.normal(level, 30, (40, 36, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{who}-{number}.png")
    targets = np.arange(80) % 2
    inputs = (random.normal(size=(80, 5)) + targets[:, None]).astype(np.float32)
    np.savez(tmp_path / "signals.npz", inputs=inputs, targets=targets, devices=np.arange(80) % 8)
    return tmp_path


def test_the_page_runs_as_it_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    names: dict[str, object] = {}
    for about, code in re.findall(r"^```python ?(.*?)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if about:
            (folder / about.removeprefix("file=")).write_text(code)
        else:
            exec(compile(code, str(PAGE), "exec"), names)
    assert Result("runs/faulty").curve["accuracy"][-1] > 0.7
    assert Result("runs/d").metric.name == "rmse"
    assert Result("runs/photos").config["fleet"]["devices"] == 4
    assert Result("runs/signals").last_score == Result("runs/signals-2").curve["accuracy"][0]
    (recipe,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / "mine.toml").write_text(recipe)
    monkeypatch.setattr(sys, "argv", ["fedasmu", "run", "mine.toml", "--allow-code", "--set", "stop.uploads=5"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert Result("runs/mine").config["fleet"]["devices"] == 12
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("odd", range(25))  # five of them are kept to test on
def test_a_column_of_equal_numbers_is_not_divided_by_their_rounding(tmp_path: Path, odd: int) -> None:
    """Where the one row that differs is kept to test on, its number would have 16 digits."""
    rows = [f"{0.2 if row == odd else 0.1},{row % 2}" for row in range(25)]
    (tmp_path / "rows.csv").write_text("\n".join(["level,class", *rows]))
    data = from_csv(tmp_path / "rows.csv", "class", devices=2)
    assert max(float(examples.inputs.abs().max()) for examples in (data.train, data.test)) < 5


def test_every_owner_is_a_device_and_no_example_is_lost_or_shared(folder: Path) -> None:
    data = from_csv("measurements.csv", target="faulty", device="site")
    assert [len(shard) for shard in data.shards] == [48] * 12
    assert len(data.test) == 12 * 12
    assert sorted(torch.cat([torch.as_tensor(shard) for shard in data.shards]).tolist()) == list(range(12 * 48))
    torch.testing.assert_close(data.train.inputs.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    again, other = (from_csv("measurements.csv", target="faulty", device="site", seed=seed) for seed in (0, 1))
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert not torch.equal(other.train.inputs, data.train.inputs)


def test_without_owners_examples_are_dealt(folder: Path) -> None:
    data = from_folder("photos", size=(8, 6), grey=True, devices=5)
    assert data.shape == (1, 8, 6)
    assert len(data.shards) == 5
    assert sum(map(len, data.shards)) + len(data.test) == 48
    inputs, targets = data.train.batch(slice(None))
    assert float(inputs[targets == 0].mean()) < 0 < float(inputs[targets == 1].mean()), "pixels from -1 to 1"


def test_arrays_may_bring_their_test_data(folder: Path) -> None:
    inputs, targets = np.zeros((6, 2), dtype=np.float32), np.arange(6) % 2
    np.savez("both.npz", inputs=inputs, targets=targets, test_inputs=inputs[:2], test_targets=targets[:2])
    data = from_npz("both.npz", devices=3)
    assert (len(data.train), len(data.test), len(data.shards)) == (6, 2, 3)


def test_what_is_wrong_with_files_is_one_sentence(folder: Path) -> None:
    (folder / "odd.csv").write_text("site,a,y\n1,2.0,0\n2,two,1\n")
    (folder / "old.csv").write_bytes("a,y\n1,0\nü,1\n".encode("latin-1"))
    (folder / "few.csv").write_text("a,y\n" + "1,0\n2,1\n" * 5)
    (folder / "wide.csv").write_text(f"a,y\n{'1' * 140_000},0\n")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: from_csv("odd.csv", "y"), "odd.csv, line 3: a = 'two' is not a number"),
        (lambda: from_csv("odd.csv", "z"), "target = 'z' is none of its columns: site, a, y"),
        (lambda: from_csv("nothing.csv", "y"), "nothing.csv: cannot be read: No such file"),
        (lambda: from_csv("measurements.csv", "faulty", test=1.0), "test = 1.0"),
        (lambda: from_csv("measurements.csv", "faulty", devices=10_000), "devices = 10000: there are 720 examples"),
        (lambda: from_csv("measurements.csv", "faulty", devices=2.5), "devices = 2.5"),  # type: ignore[arg-type]
        (lambda: from_csv("measurements.csv", "a", regression=True, test=0), "test: 0 inputs and 0 targets"),
        (lambda: from_csv("old.csv", "y"), "old.csv: damaged, or not saved as UTF-8: invalid start byte at byte 8"),
        (lambda: from_csv("few.csv", "y"), "test = 0.2: keeps no example to test on, as no device has more than 1; "),
        (lambda: from_csv("wide.csv", "y"), "wide.csv: damaged: field larger than field limit"),
        (lambda: from_folder("photos", "site"), "device = 'site': must be a function"),  # type: ignore[arg-type]
        (lambda: from_folder("photos", lambda file: None), "device gives None for photos"),  # type: ignore[arg-type, return-value]
        (lambda: from_folder("runs"), "no images there; expected a folder for each class"),
        (lambda: from_npz("measurements.csv"), "measurements.csv: no npz file"),
        (lambda: from_npz("nothing.npz"), "nothing.npz: cannot be read: No such file"),
    ]
    for refused, words in cases:
        with pytest.raises(UserError) as error:
            refused()
        assert words in str(error.value)
    Image.new("RGB", (5, 5)).save(folder / "photos" / "cat" / "small.png")
    with pytest.raises(UserError, match=r"small\.png: 5x5 pixels, and .* has 36x40: give a size"):
        from_folder("photos")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("site,a,y\n1,2.0,0\n1,2.0,\n", "t.csv, line 3: y = '' is empty; every row needs a target"),
        ("site,a,y\n1,2.0,0\n\n ,2.0,1\n", "t.csv, line 4: site = ' ' is empty; every row needs a device"),
        ("site,a,y\n1,2.0,0\n2,1.0\n", "t.csv, line 3: 2 values for 3 columns; none is left for y"),
        ("site,a,y\n1,2.0,0\n2,1,5,1\n", "t.csv, line 3: 4 values for 3 columns; '1' is in none"),
        ("site,a,a,y\n1,2.0,3.0,0\n", "t.csv, line 1: 2 columns are named 'a'; each needs its own name"),
        ("site,y\n1,0\n2,1\n", "t.csv, line 1: no column but site, y; need at least one of inputs"),
        ("site;a;y\n1;2,0;0\n", "none of its columns: site;a;y; are they separated by ';'? Need commas"),
        ("\n1,0\n2,1\n", "target = 'y' is none of its columns: it has no names"),
        ("site,a,y\n", "t.csv: it has no rows; need a line of names, and below it a row for each example"),
        ("", "t.csv: it has no rows"),
    ],
)
def test_a_table_that_is_not_whole_is_refused_by_its_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        from_csv(tmp_path / "t.csv", "y", "site")


def test_a_table_of_excel_begins_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,größe\n" + "0,1.5\n1,2.5\n" * 4, encoding="utf-8-sig")
    assert from_csv(tmp_path / "t.csv", "y", devices=2, test=0.5).shape == (1,)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    inputs, targets = np.zeros((6, 2), dtype=np.float32), np.arange(6) % 2
    cases = [
        ({"inputs": inputs, "targets": targets[:4]}, "6 inputs and 4 targets; need as many of each"),
        ({"inputs": inputs[:4], "targets": targets}, "4 inputs and 6 targets; need as many of each"),
        ({"inputs": inputs[:0], "targets": targets[:0], "devices": targets[:0]}, "0 inputs and 0 targets"),
        ({"inputs": inputs, "targets": np.array(1)}, "a.npz: damaged: len() of unsized object"),
        ({"inputs": inputs * np.nan, "targets": targets}, "a.npz: train: the inputs are not all finite numbers"),
        ({"x": inputs, "targets": targets}, "a.npz: must hold arrays named inputs and targets; it has x, targets"),
        ({"inputs": inputs, "targets": targets.astype(object)}, "a.npz: targets holds Python objects; save numbers"),
        ({"inputs": inputs, "targets": targets, "test_inputs": inputs}, "test_inputs without test_targets; need both"),
        ({"inputs": inputs, "targets": targets, "test_targets": targets}, "test_targets without test_inputs"),
    ]
    for arrays, words in cases:
        np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=re.escape(words)):
            from_npz(tmp_path / "a.npz", devices=2)


def test_a_damaged_npz_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, inputs=np.random.default_rng(0).normal(size=(60, 20)), targets=np.arange(60) % 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes(100) + whole[600:])
    with pytest.raises(UserError, match=r"a\.npz: damaged: "):
        from_npz(path)
    for cut in (0, 2, 300, len(whole) - 10):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"a\.npz: no npz file, or one that is cut off"):
            from_npz(path)


@pytest.mark.parametrize("size", [8, (8,), (8, 8, 3), (0, 8), (8.0, 8.0), "88"])
def test_a_size_is_two_numbers(size: Any, folder: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"size = {size!r}: must be (height, width)")):
        from_folder("photos", size=size)


def test_labels_have_one_order_whatever_the_seed_of_hashes() -> None:
    """Labels that are the same number stood in the order of a set."""
    same = ["0" * zeros + "1" for zeros in range(12, -1, -1)]
    assert _numbered([*same, "2", "10", "²", "b"]).tolist() == [*range(13), 13, 14, 16, 15]
