"""What every method must do. A method is covered by being listed in ALGORITHMS, under each of its names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedasmu.algorithms import NAMES
from fedasmu.cli import app
from fedasmu.conformance import CHECKS, Trial

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
# Sixty uploads are few for a server that steps by a thousandth.
SETTINGS: dict[str, dict[str, Any]] = {"fadas": {"server_lr": 0.05}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_method(name: str, check: Callable[[Trial], None], tmp_path: Path) -> None:
    check(Trial({"name": name, **SETTINGS.get(name, {})}, tmp_path))


FORGETFUL = '''
from fedasmu import Aggregate, Aggregator
from fedasmu.algorithms import FedAsync


class Counting(Aggregator):
    """Its state changes what it does, and is in no checkpoint."""

    def __init__(self):
        self.seen = 0

    def aggregate(self, current, uploads):
        self.seen += 1
        weight = 0.6 if self.seen <= 20 else 0.4
        return Aggregate(current.vector + weight * (uploads[0].report.vector - current.vector), [weight])


class Forgetful(FedAsync):
    """A method with a mistake."""

    name: str = "forgetful"

    def aggregator(self, federation):
        return Counting()
'''


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """What the command says of a method in a file beside its user."""

    def check(source: str, method: str) -> str:
        (tmp_path / "users_own.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        done = CliRunner().invoke(app, ["check", f"users_own:{method}"])
        sys.modules.pop("users_own", None)
        assert done.exit_code == 1
        return done.output

    return check


def test_a_method_of_ones_own_is_checked_by_a_command(checked: Callable[[str, str], str]) -> None:
    output = checked(FORGETFUL, "Forgetful")
    assert "ok      It learns a convex problem." in output
    assert "failed  Killed in the middle and resumed, it ends in the same bytes." in output
    assert "do `state` and `restore` keep all that changes?" in output
    assert "1 of 7 failed" in output


BROKEN = """
from fedasmu.algorithms.fedasync import FedAsync, Mix


class Adrift(Mix):
    def aggregate(self, current, uploads):
        return self.nothing


class Broken(FedAsync):
    def aggregator(self, federation):
        return Adrift(self)
"""


def test_a_method_that_raises_fails_its_checks_with_the_line(
    checked: Callable[[str, str], str], tmp_path: Path
) -> None:
    output = checked(BROKEN, "Broken")
    assert f"AttributeError: 'Adrift' object has no attribute 'nothing' ({tmp_path}/users_own.py, line 7)" in output
    assert "7 of 7 failed" in output


def test_settings_of_the_method_that_is_checked() -> None:
    done = CliRunner().invoke(app, ["check", "fedasync", "--set", "alhpa=0.3"])
    assert "did you mean algorithm.alpha?" in str(done.exception)
