"""The words of a text model as a file that is named by its digest: every device gets the server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

LARGEST = 64 << 20  # bytes


def written(words: Sequence[str]) -> tuple[str, bytes]:
    """The digest, and the bytes that have it."""
    data = json.dumps(list(words), ensure_ascii=False).encode()
    return sha256(data).hexdigest(), data


def read(data: bytes, digest: str) -> list[str]:
    """The words, if these are the bytes that were promised. A ValueError if not."""
    if sha256(data).hexdigest() != digest:
        raise ValueError("not the words that were promised")
    words = json.loads(data)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError("not a list of words")
    return words
