"""The source archive and the wheel: built from what git holds, installed outside of the repository, and run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
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
        if (ROOT / name).is_file() and not name.startswith("docs/"):
            target = tmp_path / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return tmp_path / "sources"


@pytest.fixture
def archive(sources: Path, tmp_path: Path) -> Path:
    """The source archive, made by the setuptools that pyproject.toml asks for."""
    tools = tmp_path / "tools"
    wanted = tomllib.loads((sources / "pyproject.toml").read_text())["build-system"]["requires"]
    python("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tools), *wanted, cwd=tmp_path)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    python("-c", build, cwd=sources, PYTHONPATH=str(tools))
    (made,) = tmp_path.glob("*.tar.gz")
    return made


@pytest.mark.timeout(600)  # it compiles the engine three times, which a busy machine takes minutes for
def test_an_installed_wheel_of_the_source_archive_runs_the_quickstart(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as made:
        held = {name.partition("/")[2] for name in made.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "constraints.txt", "setup.py"} <= held
    assert not [name for name in held if name.startswith("tests")], "a part of the tests alone is of no use"
    python("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(archive), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name, "the engine is plain C: one wheel serves every Python"
    installed = tmp_path / "installed"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel), cwd=tmp_path)
    there = {"PYTHONPATH": str(installed)}
    assert str(installed) in python("-c", "import fedasmu; print(fedasmu.__file__)", cwd=tmp_path, **there)
    short = ("--set", "stop.uploads=3", "--set", "engine=native", "--out", "run")
    python("-m", "fedasmu", "run", "quickstart", *short, cwd=tmp_path, **there)
    assert (tmp_path / "run" / "model.safetensors").is_file()
