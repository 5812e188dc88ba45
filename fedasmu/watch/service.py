"""How a service stands: what it writes beside its run, read as anything from elsewhere is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FILE = "service.json"
LONGEST = 8 << 20  # bytes


def read(directory: Path) -> dict[str, Any] | None:
    """None where there is no service, or what is there is none of ours."""
    try:
        with (directory / FILE).open("rb") as file:
            found = json.loads(file.read(LONGEST + 1)[:LONGEST])
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("devices"), list):
        return None
    return found | {"devices": [device for device in found["devices"] if isinstance(device, dict)]}


def number(table: dict[str, Any], key: str) -> float | None:
    """A finite number of the table; None if it has none of that name."""
    value = table.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and value is not None else None
