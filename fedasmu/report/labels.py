"""Labels: as the name of a directory or a file, and in the order in which they were given."""

from __future__ import annotations

import re
from hashlib import sha256

LONGEST = 110  # bytes; a file name has up to 255, and may be made of two labels
ORDER_FILE = "methods.txt"  # in the directory of a comparison: its labels as they were given, one a line


def slug(text: str) -> str:
    """A label that is safe as the name of a directory, and no longer than a file system takes."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return safe if len(safe.encode()) <= LONGEST else f"{safe[:24]}-{sha256(text.encode()).hexdigest()[:12]}"
