"""Every Python block in the documentation is run: here, or by the test of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.repository import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
# Pages whose Python another test runs, or compares with the code.
PYTHON_ELSEWHERE = {
    "README.md": "test_docs.py",
    "docs/explanation/driver.md": "test_driver.py",
    "docs/how-to/add-an-algorithm.md": "algorithms/test_algorithms_docs.py",
    "docs/how-to/data.md": "data/test_data_docs.py",
    "docs/how-to/trackers.md": "run/test_trackers.py",
    "docs/how-to/your-files.md": "data/test_files.py",
    "docs/reference/api.md": "test_public.py",
    "docs/reference/models.md": "models/test_models.py",
}
PYTHON = re.compile(r"^(<!-- not run: .+ -->\n)?```python.*?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def test_every_python_block_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the pages, which build on each other's runs; runs are cut to a few uploads."""
    monkeypatch.chdir(tmp_path)
    ran = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        found = PYTHON.findall(page.read_text())
        if name in PYTHON_ELSEWHERE:
            assert found, f"{name}: has no Python any more"
            assert page.name in (ROOT / "tests" / PYTHON_ELSEWHERE[name]).read_text()
            continue
        names: dict[str, object] = {}
        for _, code in (block for block in found if not block[0]):
            exec(compile(code.replace('"stop.uploads": 40', '"stop.uploads": 2'), name, "exec"), names)
            ran.append(page.stem)
    assert ran == ["compare", "compare", "page", "tutorial-network"]
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert len(list(tmp_path.glob("device-*.npz"))) == 10
