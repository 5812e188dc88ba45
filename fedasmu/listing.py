"""What there is to choose from, as rows for a table or for JSON."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def methods() -> Rows:
    from fedasmu.algorithms import ALGORITHMS

    return [
        {"name": name, "kind": method.kind, "description": (method.__doc__ or "").splitlines()[0]}
        for method in ALGORITHMS
        for name in method.names()
    ]


def models() -> Rows:
    from fedasmu.models import MODELS

    return [
        {"name": model.name, "description": model.about, "options": [option.name for option in model.options]}
        for model in MODELS
    ]


def datasets() -> Rows:
    from fedasmu.data import DATASETS, where

    return [
        {"name": entry.name, "description": entry.summary, "here": any(found for _, found in where(entry.name))}
        for entry in DATASETS
    ]


def recipes() -> Rows:
    rows = []
    for path in sorted((Path(__file__).parent / "recipes").glob("*.toml")):
        text = path.read_text()
        model, method = tomllib.loads(text).get("model"), tomllib.loads(text)["algorithm"]["name"]
        description = text.splitlines()[0].removeprefix("# ")
        rows.append({"name": path.stem, "description": description, "model": model, "method": method})
    return rows


def fleets() -> Rows:
    from fedasmu.fleets import PRESETS_OF_FLEETS

    return [
        {"name": name, "description": about, **{"settings": str(keys)}}
        for name, (about, keys) in PRESETS_OF_FLEETS.items()
    ]


LISTINGS: dict[str, Callable[[], Rows]] = {
    "methods": methods,
    "models": models,
    "datasets": datasets,
    "recipes": recipes,
    "fleets": fleets,
}
