"""Result and limits of one read of a queue.

The status names are Apache's, because answers contain them as remarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbopump.store.disk_space import descriptor_advice


class GetStatus(Enum):
    """Status of a read of a queue.

    The names are Apache's, because answers contain them as remarks.
    """

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
    """Damaged message that is left out of the result of a read.

    - ``queue_offset``: its offset in the queue.
    - ``offset``, ``size``: its position and size in the log, as its queue unit has them.
    - ``fault``: description of the damage.
    """

    queue_offset: int
    offset: int
    fault: str
    size: int = 0


@dataclass(slots=True)
class GetResult:
    """Result of a read of a queue.

    - ``next_offset``: queue offset of the next read.
    - ``min_offset``, ``max_offset``: start and end of the queue.
    - ``data``: entries of ``count`` messages, back to back.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    count: int = 0
    gaps: int = 0
    """Number of queue offsets passed over because their messages are damaged in the log.

    ``damages`` describes the messages whose damage this read has found.
    """
    damages: tuple[DamagedMessage, ...] = ()
    unreadable: str | None = None
    """Reason why an existing message could not be read, or None. A later read may succeed."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Largest number of messages, and of bytes, in the result of one read.

    Data is cold if it lies more than ``hot_size`` bytes before the end of the log, else hot.
    """

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32


def unreadable_text(error: OSError, what: str) -> str:
    """Return the answer text for data that the system cannot read now."""
    advice = descriptor_advice(error) or "check the disk"
    return f"{what} cannot be read now ({error.strerror or error}): {advice}"
