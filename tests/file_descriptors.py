"""Waiting for a file descriptor, and counting them. Not by ``select``, which knows none beyond
number 1023: tests leave stores open that were killed."""

from __future__ import annotations

import gc
import os
import select


def is_readable(fd: int, seconds: float) -> bool:
    """Whether something can be read from ``fd`` within so many seconds, the end included."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def open_count() -> int:
    """How many this process has. What other tests have left is collected first, or it would be
    closed at any time."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
