"""Search for data in sparse files, which skips their holes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from turbopump.disk.disk import Segment

STEP: Final = 1 << 20
"""Number of bytes examined at a time."""
_STEPS_AHEAD: Final = 32


class HasData(Protocol):
    """File that can report its holes, for example a ``Segment``."""

    def data_from(self, at: int) -> int | None: ...


def data_steps(segment: HasData, at: int) -> Iterator[int]:
    """For each piece of ``STEP`` bytes that may contain data, yield its start. The search begins at
    ``at``.

    The search for data stays well ahead of the caller's reads. The system reads ahead too, and
    cached pages of a hole count as data.
    """
    ahead: deque[int] = deque()
    following: int | None = at
    while True:
        while following is not None and len(ahead) < _STEPS_AHEAD:
            following = segment.data_from(following)
            if following is not None:
                ahead.append(following)
                following += STEP
        if not ahead:
            return
        yield ahead.popleft()


def is_all_zeros(data: bytes) -> bool:
    """Return True if all bytes are zero. Cost: 0.1 ms a MiB, where ``data.count(0)`` takes 2 ms."""
    return data == bytes(len(data))


def data_runs(segment: Segment, at: int) -> Iterator[tuple[int, int]]:
    """For each run of bytes that may contain data, yield its start and its end. The search begins
    at ``at``.

    A run has at most ``STEP`` bytes.
    """
    while (start := segment.data_from(at)) is not None:
        at = min(segment.data_until(start), start + STEP)
        yield start, at


@contextmanager
def kept_open(segment: Segment) -> Iterator[None]:
    """Keep the file of a sparse segment open for several reads."""
    segment.hold(reading=True)
    try:
        yield
    finally:
        segment.release()
