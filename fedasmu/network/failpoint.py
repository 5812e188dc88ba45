"""Places where a test may let the process die: FEDASMU_FAIL=name:n ends it, as a power cut would, at the n-th visit."""

from __future__ import annotations

import os

NAMES = (
    "ledger.write",
    "ledger.written",
    "ledger.synced",
    "reply",
    "checkpoint.put",
    "checkpoint.renamed",
    "ledger.pruned",
    "recover.applied",
    "outbox.saved",
    "outbox.sent",
    "memory.saved",
)
CODE = 86  # of the exit, so that a test can tell it from any other death

_name, _, _count = os.environ.get("FEDASMU_FAIL", "").partition(":")
_left = int(_count or 1)


def reach(name: str) -> None:
    global _left
    if name != _name:
        return
    _left -= 1
    if not _left:
        os._exit(CODE)
