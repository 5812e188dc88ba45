"""The engine's C++ under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedasmu.engines import native
from fedasmu.engines.native import library
from fedasmu.engines.native.flags import VARIANTS
from helpers.repository import ROOT

COMPILER = shutil.which("g++") or shutil.which("clang++")


def usable() -> list[str]:
    if native.available() is not None:
        return ["base"]
    best = library.VARIANTS[library.load("base").engine_level()]
    return sorted({"base", best})


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler to build the engine with sanitizers")
@pytest.mark.parametrize("variant", usable())
def test_no_memory_error_and_no_undefined_behaviour(variant: str, tmp_path: Path) -> None:
    program = tmp_path / "driver"
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    source = str(ROOT / "tests/helpers/native_driver.cpp")
    command = [str(COMPILER), "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", *sanitize, *VARIANTS[variant], source]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) == 32
    assert "nan" not in ran.stdout
