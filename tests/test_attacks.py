"""The short forms of the attacks: the scripts work, and find nothing in a few cases each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.repository import ROOT


@pytest.mark.parametrize(("attack", "cases"), [("kill", 3), ("bits", 9), ("inputs", 18), ("together", 2)])
def test_a_few_cases_of_each_attack(attack: str, cases: int) -> None:
    line = [sys.executable, str(ROOT / "attacks" / f"{attack}.py"), str(cases)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{cases} cases" in done.stdout
