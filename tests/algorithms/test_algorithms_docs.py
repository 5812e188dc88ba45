"""The methods' pages say what the methods are, and the how-to's example runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedasmu import algorithms
from fedasmu.algorithms import ALGORITHMS
from fedasmu.commands.listing import settings_of
from fedasmu.errors import UserError
from helpers.blobs import Run
from helpers.repository import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import method_tables  # noqa: E402


@pytest.mark.parametrize("name", [method.names()[0] for method in ALGORITHMS])
def test_a_methods_page_has_its_settings_as_they_are(name: str) -> None:
    page = (DOCS / "algorithms" / f"{name}.md").read_text()
    assert method_tables.renewed(page, name) == page, "make tables"


def test_every_setting_says_what_it_is() -> None:
    for method in ALGORITHMS:
        assert [row["key"] for row in settings_of(method.names()[0]) if not row["meaning"]] == []


def test_the_settings_of_a_preset_are_those_that_it_stands_for() -> None:
    rows = {row["key"]: row["default"] for row in settings_of("fedasmu-paper")}
    assert (rows["lambda0"], rows["round_term"], rows["mu_alpha"]) == ("1.0", '"printed"', "0.9")
    with pytest.raises(UserError, match="list keys fedasmus: unknown method; did you mean fedasmu"):
        settings_of("fedasmus")


def test_every_method_is_exported_and_has_a_title() -> None:
    assert {method.__name__ for method in ALGORITHMS} <= set(algorithms.__all__)
    titles = [method.title for method in ALGORITHMS]
    assert all(titles)
    assert len(set(titles)) == len(ALGORITHMS)
    assert algorithms.titled("fedasmu-h1") == "FedASMU-H1"
    assert algorithms.titled("fedasmu-paper") == "FedASMU-paper"
    assert algorithms.titled("mine") == "mine"


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
