"""Waiting for a file descriptor. Not by ``select``, which knows none beyond number 1023: tests
leave stores open that were killed."""

from __future__ import annotations

import select


def is_readable(fd: int, seconds: float) -> bool:
    """Whether something can be read from ``fd`` within so many seconds, the end included."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
