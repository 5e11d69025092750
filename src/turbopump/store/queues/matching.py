"""Reads for a filter of properties: each message is read, and those that do not match are passed
over.

A read passes at most ``UNITS_MAX`` units. After ``TURN_S``, or ``TURN_UNITS``, others have their
turn, so that nobody waits for a filter, however slow it is. This module does not know what a filter
is. Source of the window: apache/rocketmq ``DefaultMessageStore.getMessage``
(``maxFilterMessageSize``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.compiled import has_twin
from turbopump.message.entry import entry_size_at, properties_span, queue_offset_of
from turbopump.message.properties import NAME_END, value_after
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.queues.read_result import GetResult, GetStatus

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


PropertyFilter = Callable[[PropertyText], bool]


def read_matching(
    read: Callable[[int], ReadSteps[GetResult]],
    offset: int,
    count_max: int,
    wanted: PropertyFilter,
    monotonic: Callable[[], float],
) -> ReadSteps[GetResult]:
    """Messages from queue offset ``offset`` on that are ``wanted``. ``read`` gives a piece of the
    queue from an offset on.

    A read that finds none says NO_MATCHED_MESSAGE and where it stopped; damages and gaps on the way
    are reported.
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
                    at = queue_offset_of(data[begin:end])  # it begins the next read
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
        end = at + entry_size_at(data, at)
        entry = data[at:end]
        text = entry[slice(*properties_span(entry))].decode(errors="replace")
        found.append((at, end, text))
        at = end
    return found
