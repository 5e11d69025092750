"""Reading a queue for somebody who wants only messages with certain properties: the others are
read, looked at and passed over.

Goes through at most ``UNITS_MAX`` units; after ``TURN_S``, or ``TURN_UNITS``, others have their
turn, so that nobody waits for a filter, however slow it is. It must not know what a filter is.
Source of the window: apache/rocketmq ``DefaultMessageStore.getMessage`` (``maxFilterMessageSize``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.compiled import has_twin
from turbopump.message.codec import MAGIC_V2
from turbopump.message.properties import NAME_END, value_after
from turbopump.message.sysflag import SysFlag
from turbopump.store.cold_reads import Steps
from turbopump.store.get_result import GetResult, GetStatus

UNITS_MAX: Final = 800
"""Queue offsets that one filtered read passes at most."""
TURN_UNITS: Final = 256
"""So many are looked at before others have their turn: about 0.4 ms with a short filter."""
TURN_S: Final = 0.001
"""A filter of many terms has so long, and one message more, before others have their turn."""
BYTES_MAX: Final = 256 * 1024
"""Bytes of messages that one filtered read gives at most, but always one message."""


class PropertyText:
    """A message's properties as they are stored; only what is asked for is decoded."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, name: str) -> str | None:
        return value_after(self._text, name + NAME_END)


Wanted = Callable[[PropertyText], bool]


def read_matching(
    read: Callable[[int], Steps[GetResult]],
    offset: int,
    count_max: int,
    wanted: Wanted,
    monotonic: Callable[[], float],
) -> Steps[GetResult]:
    """Messages from queue offset ``offset`` on that are ``wanted``. ``read`` gives a piece of the
    queue from an offset on.

    A read that finds none says NO_MATCHED_MESSAGE and where it stopped; damages and gaps on the way
    are told of.
    """
    whole: GetResult | None = None
    pieces: list[bytes] = []
    count = taken = 0
    at, turn_ends, late = offset, offset + TURN_UNITS, monotonic() + TURN_S
    properties = PropertyText("")  # one for all: nobody keeps it
    while at - offset < UNITS_MAX:
        part = yield from read(at)
        if whole is None:
            whole = part
            if part.status is not GetStatus.FOUND:
                return part
        else:
            whole.gaps += part.gaps
            whole.damages += part.damages
            if part.status is not GetStatus.FOUND:
                break
        at = part.next_offset
        data = part.data
        for begin, end, properties._text in property_texts(data):
            if wanted(properties):
                if count and (count >= count_max or taken + end - begin > BYTES_MAX):
                    at = int.from_bytes(data[begin + 20 : begin + 28])  # it begins the next read
                    break
                pieces.append(data[begin:end])
                count += 1
                taken += end - begin
            if monotonic() >= late:
                yield []  # let others have their turn
                late = monotonic() + TURN_S
        else:
            if count < count_max and at < part.max_offset:
                if at >= turn_ends:
                    yield []
                    turn_ends, late = at + TURN_UNITS, monotonic() + TURN_S
                continue
        break
    assert whole is not None
    whole.data, whole.count, whole.next_offset = b"".join(pieces), count, at
    whole.status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
    return whole


@has_twin
def property_texts(data: bytes) -> list[tuple[int, int, str]]:
    """Of each of the good entries that lie back to back in what a read gave: where it begins, where
    it ends, and its property text. About 1.1 µs for each, compiled 0.1."""
    found: list[tuple[int, int, str]] = []
    at = 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4])
        found.append((at, end, _property_text(data[at:end])))
        at = end
    return found


def _property_text(entry: bytes) -> str:
    """The property text of a good entry."""
    at = 84
    v6 = entry[39] & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    if v6:
        at += 12 * v6.bit_count()
    at += 4 + int.from_bytes(entry[at : at + 4])
    if entry[7] == MAGIC_V2 & 0xFF:
        at += 2 + int.from_bytes(entry[at : at + 2])
    else:
        at += 1 + entry[at]
    size = int.from_bytes(entry[at : at + 2])
    return entry[at + 2 : at + 2 + size].decode(errors="replace")
