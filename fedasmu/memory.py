"""How the C library serves memory in our own processes."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MOST = 1 << 30


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed, for the process's life.

    A step of SGD frees tensors of megabytes. By default they go back to the system at once, and the next step fetches
    them again page by page, each one zeroed by the kernel: up to a third of the time. Other C libraries are left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _MOST)
    mallopt(_MMAP_THRESHOLD, _MOST)
