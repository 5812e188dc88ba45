"""Where data sets are looked for on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedasmu.data.description import Description, Layout
from fedasmu.data.errors import DataError

COMPRESSIONS = ("", ".gz", ".xz")
SYSTEM_DIRECTORIES = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Found:
    """A folder that holds every file of a layout."""

    layout: Layout
    folder: Path

    def file(self, name: str) -> Path:
        path = existing(self.folder, name)
        if path is None:
            raise DataError(f"{self.folder / name} is missing")
        return path


def cache_directory() -> Path:
    """Downloads and decoded tensors go here."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "fedasmu" / "data"


def existing(folder: Path, name: str) -> Path | None:
    for compression in COMPRESSIONS:
        path = folder / f"{name}{compression}"
        if path.exists():
            return path
    return None


def missing(layout: Layout, folder: Path) -> tuple[str, ...]:
    return tuple(name for name in layout.files if existing(folder, name) is None)


def candidates(layout: Layout, directory: Path | None) -> Iterator[Path]:
    """The folders to look into, best first.

    A folder that a user names may hold the files themselves. The shared ones are only searched by subfolder, because
    MNIST and Fashion-MNIST give their files the same names.
    """
    named = [directory] if directory is not None else []
    if os.environ.get("FEDASMU_DATA"):
        named.append(Path(os.environ["FEDASMU_DATA"]))
    for base in named:
        base = base.expanduser()
        yield from (base / folder for folder in layout.folders)
        yield base
    for base in (cache_directory(), *SYSTEM_DIRECTORIES):
        yield from (base / folder for folder in layout.folders)


def find_layout(layout: Layout, directory: Path | None) -> Found | None:
    for folder in candidates(layout, directory):
        if not missing(layout, folder):
            return Found(layout, folder)
    return None


def find_part(alternatives: tuple[Layout, ...], directory: Path | None) -> Found | None:
    found = (find_layout(layout, directory) for layout in alternatives)
    return next((one for one in found if one is not None), None)


def find(description: Description, directory: Path | None) -> tuple[Found, ...] | None:
    """Every part of a data set, or None when one of them is nowhere."""
    if directory is not None and not directory.expanduser().is_dir():
        raise DataError(f"the data directory {directory} does not exist")
    if description.embedded:
        return tuple(Found(alternatives[0], EMBEDDED) for alternatives in description.parts)
    parts = [find_part(alternatives, directory) for alternatives in description.parts]
    found = tuple(part for part in parts if part is not None)
    return found if len(found) == len(parts) else None


def not_found(description: Description, directory: Path | None) -> str:
    """What to put where, in full."""
    lines = [f"the data set {description.name} was not found on this machine."]
    for alternatives in description.parts:
        if find_part(alternatives, directory) is None:
            lines += _wanted(alternatives, directory)
    return "\n".join(lines)


def _wanted(alternatives: tuple[Layout, ...], directory: Path | None) -> list[str]:
    lines: list[str] = []
    for layout in alternatives:
        target = cache_directory() / layout.folders[0]
        lines.append(f"{'Either put' if lines else 'Put'} these files (plain or .gz) into {target}:")
        lines += [f"  {name}" for name in layout.files]
        if layout.downloads:
            lines.append("They come from:")
            lines += [f"  {download.url}" for download in layout.downloads]
        for folder in candidates(layout, directory):
            lacking = missing(layout, folder)
            if len(lacking) < len(layout.files):
                lines.append(f"Note: {folder} has a part of them, but lacks {', '.join(lacking)}.")
    lines.append("Any folder will do that is named as the data directory or in the variable FEDASMU_DATA.")
    return lines
