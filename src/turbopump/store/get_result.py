"""What reading a queue gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbopump.store.checked_entries import DamagedMessage


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
