"""Questions to ``Lookup``, answered on the spot."""

from turbopump.message.message import ReceivedMessage
from turbopump.store.log.cold_reads import ReadSteps, finish_now
from turbopump.store.queues.lookup import COUNT_MAX, Lookup, StoredEntry


def message_at(lookup: Lookup, offset: int) -> ReceivedMessage | None:
    """The good message whose entry begins at this offset of the log; None if there is none."""
    return _good(lookup.entry_at(offset))


def message_in_queue(
    lookup: Lookup, topic: str, queue_id: int, index: int
) -> ReceivedMessage | None:
    """The good message with this queue offset; None if there is none."""
    return _good(lookup.entry_in_queue(topic, queue_id, index))


def _good(question: ReadSteps[StoredEntry | None]) -> ReceivedMessage | None:
    entry = finish_now(question)
    return entry.message if entry is not None and entry.fault is None else None


def offset_at_time(
    lookup: Lookup, topic: str, queue_id: int, timestamp: int, *, upper: bool = False
) -> int:
    return finish_now(lookup.offset_in_time(topic, queue_id, timestamp, upper=upper))


def find_by_key(
    lookup: Lookup,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    count_max: int = COUNT_MAX,
    *,
    unique: bool = False,
) -> list[StoredEntry]:
    """The good ones."""
    return finish_now(lookup.by_key(topic, key, begin_ms, end_ms, count_max, unique=unique)).found
