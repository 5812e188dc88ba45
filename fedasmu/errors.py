"""What went wrong, in words for the person at the keyboard. The command line prints these without a traceback."""

from __future__ import annotations

import csv
import difflib
import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

# What reading a file raises that is cut short, damaged or made up.
BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error)


class UserError(Exception):
    """A mistake in what the user gave us. The message names the key or file, its value and what is allowed."""


class DeviceError(Exception):
    """The work of one device failed. The message has its id, its seed and its traceback.

    `job` is the computation that failed; None if it was the method's own code between two computations.
    """

    def __init__(self, job: Any, message: str) -> None:
        super().__init__(message)
        self.job = job


class Refused(Exception):
    """What the operating system would not do: a full disk, no memory, a directory that is gone. Names what and why."""


class Interrupted(Exception):
    """The user asked the run to stop."""


class reading:
    """Whatever is broken in a file that somebody gave us is a `UserError` with its name."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> Literal[False]:
        if isinstance(error, BROKEN):
            raise UserError(f"{self.path}: {_reason(error)}") from error
        return False


def is_refusal(error: BaseException) -> bool:
    """Whether this is the operating system's word. Threads and torch's memory have no class of their own for it."""
    return isinstance(error, OSError) or _no_memory(error) or "can't start new thread" in str(error)


def _no_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error)


def refusal(error: BaseException, where: str | Path = "") -> str:
    """What the operating system said, with the file that it said it of."""
    if _no_memory(error):
        return f"out of memory: {str(error).splitlines()[0]}" if str(error) else "out of memory"
    if not isinstance(error, OSError) or (error.errno == errno.EAGAIN and not error.filename):
        return "the system allows no further process or thread; see `ulimit -u`, or take fewer workers"
    place = error.filename or where
    return f"{place}: {error.strerror or error}" if place else error.strerror or str(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, RecursionError):
        return "damaged: nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"damaged, or not saved as UTF-8: {error.reason} at byte {error.start}"
    missing = isinstance(error, KeyError)
    return f"damaged: it has no {error}" if missing else f"damaged: {error}"


def printable(text: str) -> str:
    """A text from elsewhere that may be shown: what would steer a terminal, or cannot be written, is replaced."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def did_you_mean(given: str, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: asks for the known one nearest to it; nothing where none is near."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
