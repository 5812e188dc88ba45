"""The example notebook runs from its first cell to its last, as it stands, and its outputs are those of its code."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from helpers.repository import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first-look.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept(cell: dict[str, Any]) -> str:
    """What a cell printed when its outputs were made."""
    return "".join("".join(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")


def words(text: str) -> str:
    """Without numbers: another processor's rounding may change their last digits."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


def test_the_notebook_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    without_pandas = importlib.util.find_spec("pandas") is None
    names: dict[str, Any] = {}
    for cell in cells():
        if not (without_pandas and "needs-pandas" in cell["metadata"].get("tags", [])):
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec"), names)
        assert words(capsys.readouterr().out) == words(kept(cell)), cell["id"]
    assert set(names["results"]) == {"fedasync", "fedasmu"}
    assert names["merged"] > 0
    assert names["results"]["fedasmu"].best_score > 0.4
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert without_pandas or len(names["runs"]) == 2


def test_every_cell_of_the_notebook_has_its_output() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, len(cells()) + 1)), "run once, from the top"
    outputs = [one for cell in cells() for one in cell["outputs"]]
    assert all(cell["outputs"] for cell in cells())
    assert {one["output_type"] for one in outputs} <= {"stream", "execute_result", "display_data"}, "no error"
    images = [base64.b64decode(one["data"]["image/png"]) for one in outputs if "image/png" in one.get("data", {})]
    assert len(images) == sum("plt.subplots" in "".join(cell["source"]) for cell in cells())
    assert all(image.startswith(b"\x89PNG") for image in images)
    assert NOTEBOOK.stat().st_size < 150_000
    assert not re.search(r"file://|/home/|/tmp/", NOTEBOOK.read_text(encoding="utf-8")), "no machine's own paths"
