"""What went wrong, in words for the person at the keyboard. The command line prints these without a traceback."""

from __future__ import annotations

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
