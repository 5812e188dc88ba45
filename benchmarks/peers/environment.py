"""A virtual environment for each peer, from the package index, with the versions of its requirements file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def python_of(peer: str, cache: Path) -> Path:
    """The interpreter of this peer's environment, which is made unless it is there as it should be."""
    wanted = HERE / f"{peer}.txt"
    folder, mark = cache / peer, cache / peer / "made-of"
    python, made_of = folder / "bin" / "python", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != made_of:
        print(f"{peer}: an environment in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        torch = [line for line in wanted.read_text().splitlines() if line.startswith(("torch==", "setuptools=="))]
        subprocess.run([*install, *torch], check=True)
        subprocess.run([*install, "--no-build-isolation", "--requirement", str(wanted)], check=True)
        mark.write_text(made_of)
    return python
