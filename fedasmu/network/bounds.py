"""What may stand in a frame's head: names, numbers and short texts, each within its bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

NAMES = 64  # of values in a note, at most
TEXT = 64  # characters of a value, at most
EXACT = 1 << 53  # whole numbers beyond this are not exact everywhere
LARGE = 8 << 20  # bytes of an upload: one that is longer, and breaks off, goes on where it stopped
NAME = re.compile(r"[a-z_][a-z0-9_]{0,31}")


class Malformed(ValueError):
    """These bytes are not what they should be. The message says what is wrong, and never repeats them."""


def note(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > NAMES:
        raise Malformed("the note is not a short table")
    return {name(key): scalar(one) for key, one in value.items()}


def scalar(value: Any) -> Any:
    """A value of a note: a number, a truth value, a short text, or nothing."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > TEXT:
            raise Malformed("a text is too long")
        return value
    if isinstance(value, int):
        whole(abs(value))
        return value
    return number(value)


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise Malformed("a number is not finite, or is none")
    return float(whole(abs(value)) * (1 if value >= 0 else -1)) if isinstance(value, int) else value


def whole(value: Any, limit: int = EXACT) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise Malformed("a whole number is out of its range, or is none")
    return value


def name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Malformed("a name has characters that names do not have")
    return value


def keys(fields: Mapping[str, Any], wanted: set[str]) -> None:
    if set(fields) != wanted:
        raise Malformed("the head has other keys than it must have")


def refuse(constant: str) -> Any:
    raise Malformed("a number is not finite")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise Malformed("a key is there twice")
    return table
