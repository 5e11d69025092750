"""Both kinds of segments of the real disk at once: those of the log, and the sparse ones of queues
and indexes. The rule: what a test has them do instead is done by both."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.stand_ins import returns

from turbopump.disk.mapped_segments import MappedSegment, MappedSparseSegment

RealSegment = MappedSegment | MappedSparseSegment
Plain = Callable[..., Any]


def replace(patched: pytest.MonkeyPatch, method: str, replacement: Callable[..., Any]) -> None:
    """Let every segment do something else. ``replacement`` gets what the segment did before, the
    segment, and the arguments."""
    for kind in (MappedSegment, MappedSparseSegment):
        patched.setattr(kind, method, _replaced(getattr(kind, method), replacement))


def _replaced(plain: Plain, replacement: Callable[..., Any]) -> Callable[..., Any]:
    return lambda segment, *given, **named: replacement(plain, segment, *given, **named)


def forget_all(patched: pytest.MonkeyPatch) -> None:
    """Nothing is in the system's memory."""
    replace(patched, "read_cached_into", returns(False))
