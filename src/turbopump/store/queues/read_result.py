"""The outcome of reading a queue: messages, or why there are none, and how much one read may give.

Apache's names of statuses are the remarks of answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbopump.store.disk_space import descriptor_advice


class GetStatus(Enum):
    """Apache's names; they are the remarks of answers."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A message that is not given out: its queue offset, the offset and size in the log that its
    unit holds, and what is wrong."""

    queue_offset: int
    offset: int
    fault: str
    size: int = 0


@dataclass(slots=True)
class GetResult:
    """Messages back to back in ``data`` (``count`` of them), and queue offsets."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    count: int = 0
    gaps: int = 0
    """Queue offsets passed over because their messages are damaged in the log; ``damages`` says
    what is wrong with those found now."""
    damages: tuple[DamagedMessage, ...] = ()
    unreadable: str | None = None
    """Why nothing could be read at the offset although something is there; the same read may work
    later."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one read may give: messages and bytes, while data is hot and when it is cold (more
    than ``hot_size`` bytes back)."""

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32


def unreadable_text(error: OSError, what: str) -> str:
    """The answer to a reader where something cannot be read."""
    advice = descriptor_advice(error) or "check the disk"
    return f"{what} cannot be read now ({error.strerror or error}): {advice}"
