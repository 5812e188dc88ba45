"""The methods' pages say what the methods are, and the how-to's example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Run

from fedasmu.algorithms import ALGORITHMS, Algorithm

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [method for method in ALGORITHMS if method.names()[0] != "fedasmu"]  # whose page is another kind of page


@pytest.mark.parametrize("method", PAGES, ids=lambda method: method.names()[0])
def test_a_methods_page_lists_its_settings(method: type[Algorithm]) -> None:
    page = (DOCS / "algorithms" / f"{method.names()[0]}.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, flags=re.MULTILINE))
    for name, field in method.model_fields.items():
        if name not in ("name", "max_staleness"):
            default = "none" if field.default is None else str(field.default)
            assert rows[name].lower() == default.lower()


@pytest.mark.parametrize("name", ["fedsa", "fedsa-semi", "asyncpart"])
def test_reconstructions_say_so(name: str) -> None:
    (method,) = (method for method in ALGORITHMS if method.names()[0] == name)
    assert (method.__doc__ or "").startswith("Reconstruction:")
    assert "reconstruction" in (DOCS / "algorithms" / f"{name}.md").read_text()


def test_the_how_tos_algorithm_runs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "how-to" / "add-an-algorithm.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "asyncfeded.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = run(algorithm={"name": "asyncfeded:AsyncFedED", "scale": 0.7})
    assert result.curve["accuracy"][-1] > 0.9
    assert any(event.get("distance", 0) > 0 for event in result.events)
