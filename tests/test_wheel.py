"""The wheel: built from what git holds, installed outside of the repository, and run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.repository import ROOT


def python(*arguments: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what git holds: neither a compiled engine nor an editable install's folder can help the build."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file() and not name.startswith(("docs/", "tests/")):
            target = tmp_path / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return tmp_path / "sources"


def test_an_installed_wheel_runs_the_quickstart(sources: Path, tmp_path: Path) -> None:
    python("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(sources), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name, "the engine is plain C: one wheel serves every Python"
    installed = tmp_path / "installed"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel), cwd=tmp_path)
    there = {"PYTHONPATH": str(installed)}
    assert str(installed) in python("-c", "import fedasmu; print(fedasmu.__file__)", cwd=tmp_path, **there)
    short = ("--set", "stop.uploads=3", "--set", "engine=native", "--out", "run")
    python("-m", "fedasmu", "run", "quickstart", *short, cwd=tmp_path, **there)
    assert (tmp_path / "run" / "model.safetensors").is_file()
