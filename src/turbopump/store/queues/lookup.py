"""Search for single messages: by log or queue offset, by key or unique id, by time.

Each search is ``ReadSteps`` (``log/cold_reads.py``), so the caller decides if its reads may block.
Each found message has been checked: magic, offset and CRC. For a search by key, the message really
has the key, because the index knows only hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.disk.disk import Found, Piece
from turbopump.errors import StoreError
from turbopump.message.codec import decode_entry, entry_fault, head_fault
from turbopump.message.entry import (
    FIXED_SIZE,
    HEAD_SIZE,
    STORE_TIMESTAMP_AT,
    V6_EXTRA,
    entry_size_at,
    queue_id_of,
    queue_offset_of,
    queue_position,
    store_timestamp_of,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from turbopump.message.rules import LMQ_PREFIX
from turbopump.store.confirmed import Confirmed
from turbopump.store.disk_space import descriptor_advice
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.cold_reads import ReadSteps, read_piece
from turbopump.store.log.commit_log import ENTRY_SIZE_MAX, CommitLog
from turbopump.store.queues.checked_entries import REBUILDING, MarkDamaged
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable

COUNT_MAX: Final = 64
"""Largest number of messages found by key, as RocketMQ's ``maxMsgsNumBatch``."""
BYTES_MAX: Final = 8 << 20
"""Largest number of message bytes in one result; a single message may be larger."""

_PAUSE_EVERY: Final = 16
"""Number of messages examined before other reads run: about 0.3 ms."""
_TIME_HEAD: Final = STORE_TIMESTAMP_AT + 8 + V6_EXTRA
"""Bytes of an entry up to its store time, for every size of host address."""
_UNITS_AT_ONCE: Final = 100
"""Number of units examined before other reads run, in search of one with a time."""


class StoredEntry(NamedTuple):
    """Stored bytes of a log entry, with the log offset and the fault.

    ``fault`` describes the damage of the entry. It is None for a valid entry.
    """

    offset: int
    data: bytes
    fault: str | None = None

    @property
    def size(self) -> int:
        """Size of the entry in bytes."""
        return len(self.data)

    @property
    def message(self) -> ReceivedMessage:
        return decode_entry(self.data, check_crc=False, errors="surrogateescape")


class ByKey(NamedTuple):
    """Result of a search by key.

    - ``found``: messages, newest first.
    - ``damaged``: damaged entries that may have had the key.
    - ``errors``: errors of the index.
    """

    found: list[StoredEntry]
    damaged: list[StoredEntry]
    errors: list[OSError]


class StoredUnits(NamedTuple):
    """Start and end of a queue, and some of its units.

    Each unit is (commit-log offset, size, tags code). ``units`` is None if the queue offset was
    outside of the queue.
    """

    min_index: int
    max_index: int
    units: list[tuple[int, int, int]] | None


@dataclass(slots=True, eq=False)
class Lookup:
    """Searches for single messages of an open store.

    - ``index``: key index; None if no message can be found by key.
    - ``confirmed``: offset of the log from which on messages are not visible yet.
    """

    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    confirmed: Confirmed
    mark_damaged: MarkDamaged

    @property
    def index_end(self) -> tuple[int, int]:
        """Log offset and store time in ms of the newest message that can be found by key.

        Both are 0 if there is none.
        """
        index = self.index
        if index is None or index.end_offset < 0:
            return 0, 0
        return index.end_offset, index.end_timestamp

    @property
    def no_index_because(self) -> str | None:
        """Reason why a search by key may miss messages, or None if it finds every message."""
        if self.index is None:
            return "this broker keeps no index (messageIndexEnable=false)"
        if self.index.failed:
            return (
                "the index could not grow: messages stored since then are found by key "
                "after the next start"
            )
        if self.index.incomplete:
            return (
                "a part of the index is damaged: its messages are found by key again when the "
                "scrub has filled it from the log"
            )
        return None

    def entry_at(self, offset: int) -> ReadSteps[StoredEntry | None]:
        """Return the entry at this log offset. A damaged entry is returned together with its fault.

        Return None if no entry begins there.
        """
        if not 0 <= offset < self.confirmed.visible:
            return None
        head = yield from self._read(offset, HEAD_SIZE)
        if isinstance(head, OSError):
            return StoredEntry(offset, b"", _unreadable(head))
        if head is None or head_fault(head, offset) is not None:
            return None
        size = entry_size_at(head)
        if not FIXED_SIZE <= size <= ENTRY_SIZE_MAX:
            return StoredEntry(offset, head, f"totalSize {size} cannot be")
        data = yield from self._read(offset, size)
        if isinstance(data, OSError):
            return StoredEntry(offset, head, _unreadable(data))
        if data is None and offset < self.log.start:
            return None
        if data is None:
            return StoredEntry(offset, head, f"totalSize {size} exceeds the segment")
        return StoredEntry(
            offset, data, entry_fault(data, offset, crc_required=self.log.requires_crc(offset))
        )

    def proven_entry_at(self, offset: int) -> ReadSteps[StoredEntry | None]:
        """Return the valid entry at this log offset, if its queue has a unit for the entry.

        Return None for any other offset. Use this method for callers that may not read all topics:
        a message body may contain a forged entry, whose length and CRC include the messages behind
        it.
        """
        entry = yield from self.entry_at(offset)
        if entry is None or entry.fault is not None:
            return None
        queued = yield from self.entry_in_queue(*queue_position(entry.data))
        if queued is None or queued.fault is not None or queued.offset != offset:
            return None
        return entry

    def entry_in_queue(
        self, topic: str, queue_id: int, index: int
    ) -> ReadSteps[StoredEntry | None]:
        """Return the entry at an offset of a queue, or None if it is not there."""
        entry = yield from self._entry_in_queue(topic, queue_id, index)
        if entry is not None and entry.fault is REBUILDING:  # a short rebuild is over at once
            entry = yield from self._entry_in_queue(topic, queue_id, index)
        return entry

    def _entry_in_queue(
        self, topic: str, queue_id: int, index: int
    ) -> ReadSteps[StoredEntry | None]:
        queue = self.queues.find(topic, queue_id)
        if queue is None or not queue.min_index <= index < queue.end.value:
            return None
        piece = queue.piece(index, 1)
        unit = (yield from read_piece(piece)) if piece is not None else b""
        if isinstance(unit, OSError):
            if index < queue.min_index:
                return None
            return StoredEntry(-1, b"", _unreadable(unit))
        if not unit or int.from_bytes(unit[8:12]) == NO_MESSAGE_SIZE:
            return None
        offset, size, _ = UNIT.unpack(unit)
        entry = yield from self.entry_at(offset)
        if entry is not None and entry.fault is None and _is_of(entry.data, queue, index):
            return entry
        if (
            entry is not None
            and entry.fault is not None
            and (not entry.data or _may_be_of(entry.data, queue, index))
        ):
            return entry  # the unit is right, or there is no proof against it
        if 0 <= offset < self.log.start and size > 0:
            return None
        why = self.mark_damaged(queue, index)
        if why is not None:
            return StoredEntry(-1, b"", why)
        if entry is None or entry.fault is None:
            return StoredEntry(
                offset,
                b"",
                "its unit in the consume queue is damaged, and the log has no such message",
            )
        return entry

    def units(
        self, topic: str, queue_id: int, index: int, count: int
    ) -> ReadSteps[StoredUnits | None]:
        """Return the stored units of a queue from ``index`` on, ``count`` at most.

        Return None if the queue never had a message. Raises StoreError if the system cannot read
        the units.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return None
        low, high = queue.min_index, queue.end.value
        if not low <= index < high:
            return StoredUnits(low, high, None)
        units: list[tuple[int, int, int]] = []
        end = min(index + max(count, 0), high)
        while index < end:
            piece = queue.piece(index, end - index)
            raw = (yield from read_piece(piece)) if piece is not None else b""
            if isinstance(raw, OSError):
                raise _not_read(queue, raw, "units")
            if not raw:
                break  # deleted meanwhile
            units += UNIT.iter_unpack(raw)
            index += len(raw) // UNIT_SIZE
            yield []
        return StoredUnits(low, high, units)

    def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        count_max: int = COUNT_MAX,
        *,
        unique: bool = False,
        behind: int = 0,
        bytes_max: int = BYTES_MAX,
    ) -> ReadSteps[ByKey]:
        """Find the newest messages with this key or unique id in a topic.

        - ``begin_ms``, ``end_ms``: range of store times, both included.
        - ``count_max``: largest number of messages; ``COUNT_MAX`` is the limit.
        - ``unique``: True to compare only the unique id.
        - ``behind``: log offset that a file of the index must reach to be read.
        - ``bytes_max``: largest number of message bytes; a single message may be larger.
        """
        found: list[StoredEntry] = []
        damaged: list[StoredEntry] = []
        if self.index is None:
            return ByKey(found, damaged, [])
        count_max = min(count_max, COUNT_MAX)
        left = bytes_max
        last = -1
        looked = 0
        walk = self.index.walk(topic, key, begin_ms, end_ms, behind)
        while len(found) < count_max:
            offset = yield from walk.next_offset()
            if offset is None:
                break
            if offset == last or any(entry.offset == offset for entry in found):
                # The same key twice, two keys of one hash, or a file with a part written twice.
                continue
            last = offset
            looked += 1
            if looked % _PAUSE_EVERY == 0:
                yield []
            entry = yield from self.entry_at(offset)
            if entry is None:
                continue  # deleted with its segment, or not visible yet
            if entry.fault is not None:
                damaged.append(entry)
                continue
            if not _is_meant(entry.message, topic, key, begin_ms, end_ms, unique=unique):
                continue
            if found and len(entry.data) > left:
                break
            found.append(entry)
            left -= len(entry.data)
        return ByKey(found, damaged, walk.errors)

    def offset_in_time(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False
    ) -> ReadSteps[int]:
        """Return the queue offset for a store time in ms, or 0 for an empty queue.

        This is the first message at or after the time, or the end of the queue if there is none.
        With ``upper`` it is the last message at or before the time, or 0 if there is none.

        Damaged messages have no time and are passed over. Raises StoreError if the system cannot
        read the needed entries.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_index, queue.end.value
        first_after = high
        last_before = 0
        while low < high:
            found = yield from self._first_with_time((low + high) // 2, high, queue)
            if found is None:
                high = (low + high) // 2
                continue
            index, stored = found
            if stored < timestamp or (upper and stored == timestamp):
                last_before = index
                low = index + 1
            else:
                first_after = index
                high = (low + high) // 2
        return last_before if upper else first_after

    def earliest_time(self, topic: str, queue_id: int) -> ReadSteps[int]:
        """Return the store time in ms of the first message of a queue, or −1 if the queue is
        empty."""
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return -1
        found = yield from self._first_with_time(queue.min_index, queue.end.value, queue)
        return found[1] if found is not None else -1

    def newest_time(self, topic: str, queue_id: int) -> ReadSteps[int]:
        """Return the store time in ms of the last message of a queue, or 0 if the queue is
        empty."""
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0
        end = queue.end.value
        found = yield from self._first_with_time(max(end - 1, queue.min_index), end, queue)
        return found[1] if found is not None else 0

    def time_at(self, queue: ConsumeQueue, index: int) -> ReadSteps[int]:
        """Return the store time in ms of the message at an offset of a queue, or −1 if there is
        none.

        If the offset is before the beginning of the queue, the first message counts. Raises
        StoreError if the system cannot read the entry.
        """
        index = max(index, queue.min_index)
        end = min(index + 1, queue.end.value)
        found = yield from self._first_with_time(index, end, queue)
        return found[1] if found is not None else -1

    def _first_with_time(
        self, index: int, end: int, queue: ConsumeQueue
    ) -> ReadSteps[tuple[int, int] | None]:
        """Find the first message of a range with a readable store time. Return its index and its
        time.

        The range begins at ``index`` and ends before ``end``. Return None if the range has no such
        message. Raises StoreError if the reason is that the system cannot read the entries.
        """
        error: OSError | None = None
        while index < end:
            count = min(end - index, _UNITS_AT_ONCE)
            units = yield from possible_units(queue, index, count, self.mark_damaged)
            if isinstance(units, OSError) and index >= queue.min_index:
                raise _not_read(queue, units)
            if not isinstance(units, bytes) or not units:
                index = max(index + 1, queue.min_index)  # deleted meanwhile
                continue
            for at in range(0, len(units), UNIT_SIZE):
                if int.from_bytes(units[at + 8 : at + 12]) != NO_MESSAGE_SIZE:
                    offset = int.from_bytes(units[at : at + 8], signed=True)
                    stored = yield from self._time_at(queue, offset, index)
                    if isinstance(stored, OSError):
                        error = stored
                    elif stored is not None:
                        return index, stored
                index += 1
            yield []
        if error is not None:
            raise _not_read(queue, error)
        return None

    def _time_at(
        self, queue: ConsumeQueue, offset: int, index: int
    ) -> ReadSteps[int | OSError | None]:
        """Return the store time in ms of the entry at a log offset.

        Return None if no entry there can belong to the queue offset ``index``, or the error of
        reading it.
        """
        head = yield from self._read(offset, _TIME_HEAD)
        if head is None or isinstance(head, OSError):
            return head
        if head_fault(head, offset) is not None or not _may_be_of(head, queue, index):
            return None
        return store_timestamp_of(head)

    def _read(self, offset: int, size: int) -> ReadSteps[Found | None]:
        """Read bytes of the log from one segment.

        Return None if the offset is outside of the log, or if the bytes would cross the end of the
        segment.
        """
        file = self.log.files.at(offset) if offset >= 0 else None
        if file is None or offset + size > file.end:
            return None
        found = yield from read_piece(Piece(file.segment, offset - file.start, size))
        if isinstance(found, OSError) and self.log.files.at(offset) is not file:
            return None  # deleted while the read waited for its turn
        return found


def possible_units(
    queue: ConsumeQueue, index: int, count: int, mark_damaged: MarkDamaged
) -> ReadSteps[Found]:
    """Return packed units of a queue from ``index`` on, ``count`` at most, from one file.

    The first impossible unit (zeros in a damaged file) is marked, and the result is an error. If
    the log has no message for it, the unit is ignored.
    """
    raw: Found = b""
    for _ in range(2):  # a short rebuild is over at once
        why = None
        piece = queue.piece(index, count)
        raw = (yield from read_piece(piece)) if piece is not None else b""
        if isinstance(raw, OSError):
            return raw
        for number, (offset, size, _) in enumerate(UNIT.iter_unpack(raw), index):
            if size < FIXED_SIZE or offset < 0:
                why = mark_damaged(queue, number)
                if why is not None:
                    break
        else:
            return raw
    return OSError(0, why)


def _is_of(entry: bytes, queue: ConsumeQueue, index: int) -> bool:
    """Return True if a valid entry is the message of this queue offset."""
    return queue_position(entry) == (queue.topic, queue.queue_id, index) or queue.topic.startswith(
        LMQ_PREFIX
    )


def _may_be_of(head: bytes, queue: ConsumeQueue, index: int) -> bool:
    """Return True if an entry with this head may be the message of this queue offset.

    The head does not contain the topic, so this is no proof.
    """
    position = (queue_id_of(head), queue_offset_of(head))
    return position == (queue.queue_id, index) or queue.topic.startswith(LMQ_PREFIX)


def _is_meant(
    message: ReceivedMessage, topic: str, key: str, begin_ms: int, end_ms: int, *, unique: bool
) -> bool:
    if message.topic != topic or not begin_ms <= message.store_timestamp <= end_ms:
        return False
    if message.properties.get(UNIQ_KEY) == key:
        return True
    return not unique and key in message.properties.get(KEYS, "").split(KEY_SEPARATOR)


def _not_read(queue: ConsumeQueue, error: OSError, what: str = "times") -> StoreError:
    why = error.strerror or error
    return StoreError(
        f"{what} of topic={queue.topic} queue={queue.queue_id} cannot be read now "
        f"({why}); {descriptor_advice(error) or 'check the disk'}"
    )


def _unreadable(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"
