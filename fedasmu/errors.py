"""What went wrong, in words for the person at the keyboard. The command line prints these without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A mistake in what the user gave us. The message names the key or file, its value and what is allowed."""


class DeviceError(Exception):
    """The work of one device failed. The message has its id, its seed and its traceback.

    `job` is the computation that failed; None if it was the method's own code between two computations.
    """

    def __init__(self, job: Any, message: str) -> None:
        super().__init__(message)
        self.job = job


class Interrupted(Exception):
    """The user asked the run to stop."""


def did_you_mean(given: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: asks for the known one nearest to it; nothing where none is near."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
