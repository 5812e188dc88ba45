"""The Python in docs/how-to/data.md runs, in order, as it stands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from helpers.repository import ROOT

PAGE = ROOT / "docs" / "how-to" / "data.md"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```python ?(.*?)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    plain = [code for needs, code in blocks() if not needs]
    assert len(plain) == 4
    for code in plain:
        exec(compile(code, str(PAGE), "exec"), names)
    assert (tmp_path / "split.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the extra package datasets is not installed")
def test_the_example_with_a_hugging_face_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    rows = {"image": [Image.new("L", (8, 8), level) for level in range(4)], "label": [0, 1, 0, 1]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    split = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk("my-folder")
    [code] = [code for needs, code in blocks() if needs == "needs=datasets"]
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["mine"].shards) == 2  # type: ignore[attr-defined]


def test_the_table_names_every_data_set() -> None:
    from fedasmu.data import DATASETS

    named = re.findall(r"^\| `([a-z0-9-]+)` \| [\d,]+ ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [description.name for description in DATASETS]
