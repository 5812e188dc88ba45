"""Which runs there are below a folder, and how far each has come: a run alone, a study, or a service."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedasmu.watch import service

DEEPEST = 4  # folders below the one that was named: study/method/seed-0


@dataclass(frozen=True)
class Run:
    directory: Path
    label: str

    def overview(self) -> dict[str, Any]:
        """A few words and numbers, from what is on the disk at this moment."""
        config = _config(self.directory)
        last = _last_line(self.directory / "metrics.csv")
        return {
            "label": self.label,
            "method": _text(config, "algorithm", "name"),
            "model": _text(config, "model", "name"),
            "data": _text(config, "data", "name"),
            "devices": _text(config, "fleet", "devices"),
            "seed": str(config.get("seed", "")),
            "budget": _text(config, "stop", "uploads"),
            "finished": (self.directory / "summary.json").is_file(),
            "score": _score(self.directory / "summary.json"),
            "failed": (self.directory / "error.txt").is_file(),
            "last": last,
        }


def find(folder: Path) -> list[Run]:
    """Every run in or below this folder, finished or not, in the order of their names."""
    return [Run(path, str(path.relative_to(folder)) if path != folder else path.name) for path in _runs(folder)]


def _runs(folder: Path, depth: int = 0) -> Iterator[Path]:
    if (folder / "config.toml").is_file():
        yield folder
    elif depth < DEEPEST:
        try:
            inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
        except OSError:
            return
        for path in inside:
            yield from _runs(path, depth + 1)


def _config(directory: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((directory / "config.toml").read_text())
    except (OSError, ValueError, RecursionError):
        return {}


def _score(path: Path) -> float | None:
    """What a finished run counts with in a study's table: by its metric, over its last evaluations."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return service.number(found, str(found.get("metric"))) if isinstance(found, dict) else None


def _text(config: dict[str, Any], section: str, key: str) -> str:
    table = config.get(section)
    return str(table.get(key, ""))[:200] if isinstance(table, dict) else ""


def _last_line(path: Path, most: int = 1000) -> str:
    """The last whole line of a growing file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - most))
            lines = file.read(most).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return lines[-2] if len(lines) > 2 else ""
