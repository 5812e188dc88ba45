"""Where data sets are looked for on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedasmu.data.description import Description, Upstream
from fedasmu.data.errors import DataError

SYSTEM_DIRECTORIES = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Place:
    """A folder that holds, or may hold, the files of a layout."""

    layout: Upstream
    folder: Path

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.layout.files if self._existing(name) is None)

    def file(self, name: str) -> Path:
        path = self._existing(name)
        if path is None:
            raise DataError(f"{self.folder / name} is missing")
        return path

    def _existing(self, name: str) -> Path | None:
        is_there = os.path.isdir if name.endswith("/") else os.path.isfile  # False, too, where we may not look
        paths = (self.folder / f"{name}{suffix}" for suffix in self.layout.suffixes)
        return next((path for path in paths if is_there(path)), None)


@dataclass(frozen=True)
class Look:
    """What a look into a folder found."""

    folder: Path
    missing: tuple[str, ...] = ()  # of the files that were looked for
    partial: bool = False  # some of them are there, and some are not


def cache_directory() -> Path:
    """Downloads and decoded tensors go here."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "fedasmu" / "data"


def no_directory(path: Path) -> str:
    """Why a folder that a user named is none; empty if it is one."""
    if os.path.isdir(path.expanduser()):
        return ""
    return "is not a directory" if os.path.exists(path.expanduser()) else "does not exist"


def candidates(alternatives: tuple[Upstream, ...], directory: Path | None) -> Iterator[Place]:
    """Where a part of a data set may be, best first: place by place, and in each place layout by layout.

    A folder that a user names may hold the files themselves. The shared ones are only searched by subfolder, because
    MNIST and Fashion-MNIST give their files the same names.
    """
    named = [directory] if directory is not None else []
    if os.environ.get("FEDASMU_DATA"):
        named.append(Path(os.environ["FEDASMU_DATA"]))
    for base in [path.expanduser() for path in named]:
        for layout in alternatives:
            yield from (Place(layout, folder) for folder in (*(base / name for name in layout.folders), base))
    for base in (cache_directory(), *SYSTEM_DIRECTORIES):
        for layout in alternatives:
            yield from (Place(layout, base / name) for name in layout.folders)


def find_part(alternatives: tuple[Upstream, ...], directory: Path | None) -> Place | None:
    return next((place for place in candidates(alternatives, directory) if not place.missing), None)


def find(description: Description, directory: Path | None) -> tuple[Place, ...] | None:
    """Every part of a data set, or None when one of them is nowhere."""
    if directory is not None and (what := no_directory(directory)):
        raise DataError(f"the data directory {directory} {what}")
    if description.embedded:
        return tuple(Place(alternatives[0], EMBEDDED) for alternatives in description.parts)
    parts = [find_part(alternatives, directory) for alternatives in description.parts]
    found = tuple(part for part in parts if part is not None)
    return found if len(found) == len(parts) else None


def looks(description: Description, directory: Path | None) -> list[Look]:
    """Into each folder where the data set may be, best first. Of several layouts, the one that lacks least counts."""
    if description.embedded:
        return [Look(EMBEDDED)]
    best: dict[Path, list[Place]] = {}  # a place for each part of the data set that may be there
    for alternatives in description.parts:
        places: dict[Path, list[Place]] = {}
        for place in candidates(alternatives, directory):
            places.setdefault(place.folder, []).append(place)
        for folder, ways in places.items():
            best.setdefault(folder, []).append(min(ways, key=lambda way: len(way.missing) / len(way.layout.files)))
    return [_look(folder, parts) for folder, parts in best.items()]


def _look(folder: Path, parts: list[Place]) -> Look:
    missing = tuple(name for part in parts for name in part.missing)
    wanted = sum(len(part.layout.files) for part in parts)
    return Look(folder, missing, 0 < len(missing) < wanted)


def not_found(description: Description, directory: Path | None) -> str:
    """What to put where, in full."""
    lines = [f"the data set {description.name} was not found on this machine."]
    for alternatives in description.parts:
        if find_part(alternatives, directory) is None:
            lines += _wanted(alternatives, directory)
    return "\n".join(lines)


def _wanted(alternatives: tuple[Upstream, ...], directory: Path | None) -> list[str]:
    lines: list[str] = []
    for layout in alternatives:
        target = cache_directory() / layout.folders[0]
        compressed = " (as they are, or as .gz)" if ".gz" in layout.suffixes else ""
        lines.append(f"{'Or put' if lines else 'Put'} these files{compressed} into {target}:")
        lines += [f"  {name}" for name in layout.files]
        if layout.downloads:
            lines.append("They come from:")
            lines += [f"  {download.url}" for download in layout.downloads]
        for place in candidates((layout,), directory):
            if len(place.missing) < len(layout.files):
                lines.append(f"Note: {place.folder} has a part of them, but lacks {', '.join(place.missing)}.")
    lines.append("Any folder will do that is named as the data directory or in the variable FEDASMU_DATA.")
    return lines
