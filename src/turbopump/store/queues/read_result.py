"""Result of a read of a queue: messages or a status, and the limits of one read.

The status names are Apache's, because answers contain them as remarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbopump.store.disk_space import descriptor_advice


class GetStatus(Enum):
    """Status of a read. Apache's names, because answers contain them as remarks."""

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
    """Message that is left out of the result: its queue offset, the offset and size in its unit,
    and its fault."""

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
    """Number of queue offsets passed over because their messages are damaged in the log.
    ``damages`` describes those found now."""
    damages: tuple[DamagedMessage, ...] = ()
    unreadable: str | None = None
    """Reason why an existing message could not be read; a later read may succeed."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one read in messages and bytes, for hot data and for cold data (more than
    ``hot_size`` bytes before the end of the log)."""

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32


def unreadable_text(error: OSError, what: str) -> str:
    """Return the answer text for data that cannot be read."""
    advice = descriptor_advice(error) or "check the disk"
    return f"{what} cannot be read now ({error.strerror or error}): {advice}"
